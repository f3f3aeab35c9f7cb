#define XXH_INLINE_ALL
#include "engine/data/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/data/tokenizer/bpe.h"
#include "engine/data/tokenizer/decoder.h"
#include "engine/data/tokenizer/normalizer.h"
#include "engine/data/tokenizer/pre_tokenizer.h"
#include "engine/data/tokenizer/scratch_pool.h"
#include "engine/data/tokenizer/tokenizer_file.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain {

namespace {

constexpr std::uint64_t kLargestTokenizerFile = std::uint64_t{256} << 20;

constexpr std::size_t kLargeText = std::size_t{1} << 20;

/// All that one call of encode() writes to.
struct Scratch {
  PatternScratch pattern;
  PreTokenizer::Scratch words;
  Bpe::Scratch bpe;
  Normalizer::Buffers normalized;
  std::vector<TextPart> parts;
  std::vector<TextPart> normalized_parts;
};

/// Tokens that are looked for before (`normalized` false) or after the text is normalised, as they
/// stand in it then.
std::vector<AddedToken> tokens_to_find(std::vector<AddedToken> tokens, bool normalized,
                                       const Normalizer& normalizer) {
  std::erase_if(tokens, [&](const AddedToken& token) { return token.normalized != normalized; });
  if (!normalized) return tokens;
  Normalizer::Buffers buffers;
  for (AddedToken& token : tokens)
    token.content = std::string(normalizer.apply(token.content, buffers));
  std::erase_if(tokens, [](const AddedToken& token) { return token.content.empty(); });
  return tokens;
}

}  // namespace

struct Tokenizer::Parts {
  Parts(const TokenizerJson& file, const std::string& path)
      : vocab(read_vocab(file, path)),
        normalizer(value_of(file.rest, "normalizer"), path),
        added(read_added_tokens(file.rest, vocab, path)),
        raw_finder(tokens_to_find(added, false, normalizer), path),
        normalized_finder(tokens_to_find(added, true, normalizer), path),
        pre_tokenizer(value_of(file.rest, "pre_tokenizer"), path),
        bpe(file, vocab, pre_tokenizer.byte_level(), path),
        around(read_template(file.rest, path)),
        decoder(value_of(file.rest, "decoder"), path) {
    for (const TokenTable::Entry& entry : vocab.entries())
      decoder.set(entry.id, vocab.token(entry), false);
    TokenTable special(added.size());
    for (const AddedToken& token : added) {
      if (token.special) special.set(token.content, token.id);
    }
    Normalizer::Buffers buffers;
    for (const AddedToken& token : added) {
      // Whether a token is left out of decoded text goes by its text, as in `tokenizers`.
      const std::string_view text =
          token.normalized ? normalizer.apply(token.content, buffers) : token.content;
      decoder.set(token.id, text, special.find(text).has_value());
      vocab.set(token.content, token.id);
    }
  }

  /// Appends the ids of text without tokens of `raw_finder`.
  void encode_text(std::string_view text, TextStart start, std::vector<std::int32_t>& ids,
                   Scratch& scratch) const {
    text = normalizer.apply(text, scratch.normalized, start != TextStart::continued);
    if (text.empty()) return;
    if (normalized_finder.empty()) return encode_words(text, start, ids, scratch);
    scratch.normalized_parts.clear();
    normalized_finder.split(text, scratch.normalized_parts, scratch.pattern);
    for (const TextPart& part : scratch.normalized_parts) {
      if (part.id != TextPart::kText) {
        ids.push_back(part.id);
      } else {
        encode_words(part.text, part.text.data() == text.data() ? start : TextStart::part, ids,
                     scratch);
      }
    }
  }

  void encode_words(std::string_view text, TextStart start, std::vector<std::int32_t>& ids,
                    Scratch& scratch) const {
    for (const std::string_view word : pre_tokenizer.split(text, start, scratch.words))
      bpe.encode(word, ids, scratch.bpe);
  }

  TokenTable vocab;  ///< with the added tokens, once they are read
  Normalizer normalizer;
  std::vector<AddedToken> added;
  AddedTokenFinder raw_finder;
  AddedTokenFinder normalized_finder;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  std::vector<std::int32_t> around;  ///< read_template()
  Decoder decoder;
  std::optional<std::int32_t> bos, eos, pad;
  std::string chat_template;
  std::uint64_t content_hash = 0;
  mutable ScratchPool<Scratch> scratches;
};

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> Tokenizer::open(const std::filesystem::path& file_or_folder) {
  namespace fs = std::filesystem;
  const bool is_folder = path_kind(file_or_folder) == PathKind::folder;
  const fs::path file = is_folder ? file_or_folder / "tokenizer.json" : file_or_folder;
  if (is_folder && !path_exists(file)) {
    throw Error(ErrorKind::data,
                fmt::format("{}: holds no tokenizer.json", file_or_folder.string()),
                "a folder with vocab.json and merges.txt alone becomes one by transformers' "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)");
  }
  const auto beside = [&file](const char* name) {
    const fs::path other = file.parent_path() / name;
    return path_exists(other) ? read_file(other, kLargestTokenizerFile) : "";
  };
  return parse(read_file(file, kLargestTokenizerFile), beside("tokenizer_config.json"),
               file.string(), beside("chat_template.jinja"));
}

std::shared_ptr<const Tokenizer> Tokenizer::parse(std::string_view tokenizer_json,
                                                  std::string_view config, const std::string& path,
                                                  std::string chat_template) {
  const TokenizerJson file = read_tokenizer_json(tokenizer_json, path);
  check_model(file, path);
  auto parts = std::make_unique<Parts>(file, path);
  if (!config.empty()) {
    const std::string config_path =
        (std::filesystem::path(path).parent_path() / "tokenizer_config.json").string();
    const TokenizerConfig facts = read_tokenizer_config(config, config_path);
    const auto id_of = [&](const char* key,
                           const std::optional<std::string>& token) -> std::optional<std::int32_t> {
      if (!token) return {};
      if (const auto id = parts->vocab.find(*token)) return id;
      throw Error(
          ErrorKind::data,
          fmt::format("{}: {}: '{}' is no token of {}", config_path, key, shown_text(*token), path),
          "name a token that is there, or null");
    };
    parts->bos = id_of("bos_token", facts.bos);
    parts->eos = id_of("eos_token", facts.eos);
    parts->pad = id_of("pad_token", facts.pad);
    parts->chat_template = facts.chat_template;
  }
  parts->content_hash = XXH3_64bits_withSeed(
      config.data(), config.size(), XXH3_64bits(tokenizer_json.data(), tokenizer_json.size()));
  if (!chat_template.empty()) {
    parts->content_hash =
        XXH3_64bits_withSeed(chat_template.data(), chat_template.size(), parts->content_hash);
    parts->chat_template = std::move(chat_template);
  }
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(parts)));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::string replaced;
  if (!is_utf8(text)) {
    replaced = replace_invalid_utf8(text);
    text = replaced;
  }
  // What a large text needs is not kept.
  std::optional<ScratchPool<Scratch>::Lease> lease;
  std::optional<Scratch> own;
  Scratch& scratch = text.size() > kLargeText ? own.emplace() : *lease.emplace(parts_->scratches);
  scratch.pattern.begin_text(text.size());
  scratch.words.begin_text(text.size());
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  for (const std::int32_t around : parts_->around) {
    if (around != kTemplateText) {
      if (add_special_tokens) ids.push_back(around);
      continue;
    }
    scratch.parts.clear();
    parts_->raw_finder.split(text, scratch.parts, scratch.pattern);
    for (const TextPart& part : scratch.parts) {
      if (part.id != TextPart::kText) {
        ids.push_back(part.id);
      } else {
        parts_->encode_text(part.text,
                            part.text.data() == text.data() ? TextStart::first : TextStart::part,
                            ids, scratch);
      }
    }
  }
  return ids;
}

TextStart Tokenizer::start_behind(std::int32_t id) const {
  const auto found = std::ranges::find(parts_->added, id, &AddedToken::id);
  const bool cuts = found != parts_->added.end() && !found->normalized;
  return cuts ? TextStart::part : TextStart::continued;
}

std::int64_t Tokenizer::encode_around(std::string_view text, std::span<const ByteRange> plain,
                                      TextStart start, std::vector<std::int32_t>& ids) const {
  DSTRAIN_CHECK(is_utf8(text), "ranges of bytes of another text");
  std::optional<ScratchPool<Scratch>::Lease> lease;
  std::optional<Scratch> own;
  Scratch& scratch = text.size() > kLargeText ? own.emplace() : *lease.emplace(parts_->scratches);
  scratch.pattern.begin_text(text.size());
  scratch.words.begin_text(text.size());
  scratch.parts.clear();
  PlainRanges ranges{.ranges = plain};
  parts_->raw_finder.split(text, scratch.parts, scratch.pattern, &ranges);
  for (const TextPart& part : scratch.parts) {
    if (part.id != TextPart::kText)
      ids.push_back(part.id);
    else
      parts_->encode_text(part.text, part.text.data() == text.data() ? start : TextStart::part, ids,
                          scratch);
  }
  return ranges.kept;
}

std::vector<std::int32_t> Tokenizer::opening() const {
  const auto text = std::ranges::find(parts_->around, kTemplateText);
  return {parts_->around.begin(), text};
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  return parts_->decoder.decode(ids, skip_special_tokens);
}

std::int32_t Tokenizer::vocab_size() const { return parts_->decoder.size(); }
std::optional<std::int32_t> Tokenizer::token_id(std::string_view token) const {
  return parts_->vocab.find(token);
}
std::optional<std::int32_t> Tokenizer::bos() const { return parts_->bos; }
std::optional<std::int32_t> Tokenizer::eos() const { return parts_->eos; }
std::optional<std::int32_t> Tokenizer::pad() const { return parts_->pad; }
std::vector<std::string> Tokenizer::special_tokens() const {
  std::vector<std::string> texts;
  for (const AddedToken& token : parts_->added) {
    if (token.special) texts.push_back(token.content);
  }
  return texts;
}
const std::string& Tokenizer::chat_template() const { return parts_->chat_template; }
std::uint64_t Tokenizer::content_hash() const { return parts_->content_hash; }

}  // namespace dstrain
