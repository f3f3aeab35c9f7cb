#include "engine/data/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/data/tokenizer/byte_alphabet.h"
#include "engine/data/tokenizer/json_fields.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain {

namespace {

constexpr std::int32_t kNoRank = std::numeric_limits<std::int32_t>::max();
/// Up to so many symbols a scan for the lowest rank is quicker than a heap.
constexpr std::size_t kShortWord = 64;

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

}  // namespace

Bpe::Bpe(const TokenizerJson& file, const TokenTable& vocab, bool byte_level,
         const std::string& path)
    : byte_level_(byte_level) {
  const nlohmann::json& model = file.rest.at("model");
  read_options(model, vocab, path);
  if (byte_level) {
    read_bytes(model, vocab, path);
  } else {
    read_characters(model, vocab, path);
  }
  read_merges(file, vocab, path);
  if (whole_words_first_) read_whole_words(vocab);
}

void Bpe::read_options(const nlohmann::json& model, const TokenTable& vocab,
                       const std::string& path) {
  const JsonFields fields(model, path, "model");
  const auto dropout = model.find("dropout");
  if (dropout != model.end() && !dropout->is_null() && *dropout != 0) {
    fields.refuse("dropout", "null, since dropout on merges is not supported");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!fields.text(affix, "").empty()) fields.refuse(affix, "null or \"\", which is supported");
  }
  if (byte_level_ && fields.flag("byte_fallback", false))
    fields.refuse("byte_fallback", "false, as byte-level BPE has it");
  fuse_unknown_ = fields.flag("fuse_unk", false);
  whole_words_first_ = fields.flag("ignore_merges", false);
  const auto unknown = model.find("unk_token");
  if (unknown != model.end() && !unknown->is_null()) {
    unknown_ = vocab.find(fields.text("unk_token", "")).value_or(kNoSymbol);
  }
}

void Bpe::read_bytes(const nlohmann::json& model, const TokenTable& vocab,
                     const std::string& path) {
  const bool names_unknown = model.contains("unk_token") && !model.at("unk_token").is_null();
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, character_of_byte(static_cast<std::uint8_t>(byte)));
    symbol_of_byte_[byte] = vocab.find(token).value_or(kNoSymbol);
    if (symbol_of_byte_[byte] == kNoSymbol && unknown_ == kNoSymbol && names_unknown) {
      throw Error(
          ErrorKind::data,
          fmt::format(
              "{}: model.vocab has no token for byte 0x{:02x}, and none for model.unk_token {}",
              path, byte, shown_json(model.at("unk_token"))),
          "expected a byte-level vocabulary, which holds all 256 bytes");
    }
  }
}

void Bpe::read_characters(const nlohmann::json& model, const TokenTable& vocab,
                          const std::string& path) {
  const JsonFields fields(model, path, "model");
  const bool falls_back = fields.flag("byte_fallback", false);
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto id = falls_back ? vocab.find(fmt::format("<0x{:02X}>", byte)) : std::nullopt;
    symbol_of_byte_[byte] = id.value_or(kNoSymbol);
  }
  for (const TokenTable::Entry& entry : vocab.entries()) {
    const std::string_view token = vocab.token(entry);
    if (token.empty()) continue;
    const CodePoint first = code_point_at(token, 0);
    if (first.length == token.size()) symbol_of_character_[first.value] = entry.id;
  }
  if (unknown_ == kNoSymbol && !fields.text("unk_token", "").empty())
    fields.refuse("unk_token", "a token of model.vocab, or null");
}

void Bpe::read_merges(const TokenizerJson& file, const TokenTable& vocab, const std::string& path) {
  const std::size_t slots = std::bit_ceil(2 * file.merges.size() + 16);
  merges_.assign(slots, {});
  shift_ = 64 - std::countr_zero(slots);
  std::string joined;
  for (std::size_t rank = 0; rank < file.merges.size(); ++rank) {
    const TokenizerJson::Merge& merge = file.merges[rank];
    const auto id_of = [&](std::string_view token) {
      const auto id = vocab.find(token);
      if (id) return *id;
      throw Error(
          ErrorKind::data,
          fmt::format("{}: model.merges[{}] joins '{}' and '{}', but '{}' is not in model.vocab",
                      path, rank, shown_text(file.view(merge.left)),
                      shown_text(file.view(merge.right)), shown_text(token)),
          "the list of merges and the vocabulary belong to two tokenizers, or one was edited");
    };
    const std::int32_t left = id_of(file.view(merge.left)), right = id_of(file.view(merge.right));
    joined.assign(file.view(merge.left)).append(file.view(merge.right));
    const std::uint64_t pair = pair_of(left, right);
    // A pair that is listed twice has the later rank, as in `tokenizers`.
    merges_[slot_of(pair)] = {
        .pair = pair, .rank = static_cast<std::int32_t>(rank), .id = id_of(joined)};
  }
}

void Bpe::read_whole_words(const TokenTable& vocab) {
  whole_words_ = TokenTable(vocab.size());
  for (const TokenTable::Entry& entry : vocab.entries()) {
    const std::string_view token = vocab.token(entry);
    if (!byte_level_) {
      whole_words_.set(token, entry.id);
    } else if (const auto bytes = bytes_of_token(token)) {
      whole_words_.set(*bytes, entry.id);
    }
  }
}

std::size_t Bpe::slot_of(std::uint64_t pair) const {
  // Fibonacci hashing: the upper bits of the product are well mixed.
  std::size_t slot = (pair * 0x9e3779b97f4a7c15u) >> shift_;
  while (merges_[slot].pair != pair && merges_[slot].pair != kNoPair)
    slot = (slot + 1) & (merges_.size() - 1);
  return slot;
}

const Bpe::Merge* Bpe::find_merge(std::int32_t left, std::int32_t right) const {
  const Merge& merge = merges_[slot_of(pair_of(left, right))];
  return merge.pair == kNoPair ? nullptr : &merge;
}

void Bpe::split_into_bytes(std::string_view word, std::vector<std::int32_t>& symbols) const {
  symbols.clear();
  bool after_unknown = false;
  for (const char c : word) {
    const std::int32_t symbol = symbol_of_byte_[static_cast<unsigned char>(c)];
    if (symbol != kNoSymbol) {
      symbols.push_back(symbol);
      after_unknown = false;
    } else if (unknown_ != kNoSymbol) {
      if (!fuse_unknown_ || !after_unknown) symbols.push_back(unknown_);
      after_unknown = true;
    }
  }
}

bool Bpe::append_bytes(std::string_view character, std::vector<std::int32_t>& symbols) const {
  const auto symbol = [&](char c) { return symbol_of_byte_[static_cast<unsigned char>(c)]; };
  for (const char c : character) {
    if (symbol(c) == kNoSymbol) return false;
  }
  for (const char c : character) symbols.push_back(symbol(c));
  return true;
}

void Bpe::split_into_characters(std::string_view word, std::vector<std::int32_t>& symbols) const {
  symbols.clear();
  bool unknown_waits = false;
  for (std::size_t at = 0; at < word.size();) {
    const CodePoint point = code_point_at(word, at);
    const std::string_view character = word.substr(at, point.length);
    at += point.length;
    const auto known = symbol_of_character_.find(point.value);
    if (known != symbol_of_character_.end()) {
      if (unknown_waits) symbols.push_back(unknown_);
      unknown_waits = false;
      symbols.push_back(known->second);
      continue;
    }
    // In `tokenizers` bytes come before an unknown that waits.
    if (append_bytes(character, symbols) || unknown_ == kNoSymbol) continue;
    if (unknown_waits && !fuse_unknown_) symbols.push_back(unknown_);
    unknown_waits = true;
  }
  if (unknown_waits) symbols.push_back(unknown_);
}

void Bpe::merge_short(Scratch& scratch) const {
  std::vector<std::int32_t>& symbols = scratch.symbols_;
  std::vector<const Merge*>& pairs = scratch.pairs_;
  std::vector<std::int32_t>& ranks = scratch.ranks_;
  std::size_t count = symbols.size();
  pairs.resize(count);
  ranks.resize(count);
  const auto look_up = [&](std::size_t i) {
    pairs[i] = find_merge(symbols[i], symbols[i + 1]);
    ranks[i] = pairs[i] == nullptr ? kNoRank : pairs[i]->rank;
  };
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    const auto lowest =
        std::min_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(count - 1));
    if (*lowest == kNoRank) break;
    const auto at = static_cast<std::size_t>(lowest - ranks.begin());
    symbols[at] = pairs[at]->id;
    const auto drop = [&](auto& list) {
      std::copy(list.begin() + static_cast<std::ptrdiff_t>(at + 2),
                list.begin() + static_cast<std::ptrdiff_t>(count),
                list.begin() + static_cast<std::ptrdiff_t>(at + 1));
    };
    drop(symbols);
    if (at + 2 < count) {
      drop(pairs);
      drop(ranks);
    }
    --count;
    if (at > 0) look_up(at - 1);
    if (at + 1 < count) look_up(at);
  }
  symbols.resize(count);
}

void Bpe::merge_long(Scratch& scratch) const {
  using Candidate = Scratch::Candidate;
  std::vector<std::int32_t>& symbols = scratch.symbols_;
  auto& list = scratch.list_;
  std::vector<Candidate>& heap = scratch.heap_;
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto count = static_cast<std::int32_t>(symbols.size());
  const auto at = [&](std::int32_t position) -> Scratch::Symbol& {
    return list[static_cast<std::size_t>(position)];
  };

  list.clear();
  heap.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    list.push_back({.id = symbols[static_cast<std::size_t>(i)],
                    .previous = i - 1,
                    .next = i + 1 < count ? i + 1 : -1,
                    .removed = false});
  }
  const auto candidate = [&](std::int32_t left, std::int32_t right) {
    const Merge* merge = find_merge(at(left).id, at(right).id);
    if (merge == nullptr) return false;
    heap.push_back({.rank = merge->rank, .position = left, .id = merge->id});
    return true;
  };
  for (std::int32_t i = 0; i + 1 < count; ++i) candidate(i, i + 1);
  std::make_heap(heap.begin(), heap.end(), later);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = at(best.position);
    if (left.removed || left.next < 0) continue;
    Scratch::Symbol& right = at(left.next);
    // The neighbours may have changed since this was noted.
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) continue;
    left.id = best.id;
    left.next = right.next;
    right.removed = true;
    if (left.next >= 0) at(left.next).previous = best.position;
    if (left.previous >= 0 && candidate(left.previous, best.position))
      std::push_heap(heap.begin(), heap.end(), later);
    if (left.next >= 0 && candidate(best.position, left.next))
      std::push_heap(heap.begin(), heap.end(), later);
  }
  symbols.clear();
  for (const Scratch::Symbol& symbol : list) {
    if (!symbol.removed) symbols.push_back(symbol.id);
  }
}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const {
  if (whole_words_first_) {
    if (const auto id = whole_words_.find(word)) {
      ids.push_back(*id);
      return;
    }
  }
  const bool cached = word.size() <= WordCache::kMaxWordBytes;
  const std::uint64_t hash = cached ? WordCache::hash(word) : 0;
  if (cached && scratch.cache_.append(word, hash, ids)) return;
  if (byte_level_) {
    split_into_bytes(word, scratch.symbols_);
  } else {
    split_into_characters(word, scratch.symbols_);
  }
  if (scratch.symbols_.size() <= kShortWord) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  ids.insert(ids.end(), scratch.symbols_.begin(), scratch.symbols_.end());
  if (cached) scratch.cache_.insert(word, hash, scratch.symbols_);
}

}  // namespace dstrain
