#include "engine/data/tokenizer/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/data/tokenizer/pattern_syntax.h"
#include "engine/data/tokenizer/unicode.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain {

namespace {

bool is_white_space(char32_t c) {
  return std::ranges::any_of(kWhiteSpace,
                             [c](CodeRange range) { return range.first <= c && c <= range.last; });
}

/// Not before byte `min`.
std::size_t skip_space_before(std::string_view text, std::size_t end, std::size_t min) {
  while (end > min) {
    const std::size_t last = start_of_last(text, end);
    if (!is_white_space(code_point_at(text, last).value)) break;
    end = last;
  }
  return end;
}

std::size_t skip_space_after(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const CodePoint point = code_point_at(text, at);
    if (!is_white_space(point.value)) break;
    at += point.length;
  }
  return at;
}

}  // namespace

bool PlainRanges::touch(std::size_t begin, std::size_t end) const {
  const auto next = std::ranges::upper_bound(ranges, begin, {}, &ByteRange::end);
  return next != ranges.end() && next->begin < end;
}

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens, const std::string& path)
    : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    std::int32_t node = 0;
    for (const char c : tokens_[i].content) {
      const auto byte = static_cast<unsigned char>(c);
      const auto [child, is_new] =
          children_.try_emplace(static_cast<std::uint64_t>(node) << 8 | byte,
                                static_cast<std::int32_t>(token_of_node_.size()));
      if (is_new) token_of_node_.push_back(kNone);
      node = child->second;
    }
    std::int32_t& token = token_of_node_[static_cast<std::size_t>(node)];
    if (token != kNone) {
      throw Error(
          ErrorKind::data,
          fmt::format("{}: added_tokens: ids {} and {} are the same text '{}' once normalised",
                      path, tokens_[static_cast<std::size_t>(token)].id, tokens_[i].id,
                      tokens_[i].content));
    }
    token = static_cast<std::int32_t>(i);
    first_bytes_[static_cast<unsigned char>(tokens_[i].content.front())] = true;
    if (tokens_[i].single_word && !word_) {
      word_ = std::make_unique<Pattern>(rust_word_class(), path + ": single_word");
    }
  }
}

std::size_t AddedTokenFinder::next_candidate(std::string_view text, std::size_t at) const {
  while (at < text.size() && !first_bytes_[static_cast<unsigned char>(text[at])]) ++at;
  return at;
}

std::int32_t AddedTokenFinder::longest_at(std::string_view text, std::size_t at) const {
  std::int32_t longest = kNone, node = 0;
  for (; at < text.size(); ++at) {
    const auto child = children_.find(static_cast<std::uint64_t>(node) << 8 |
                                      static_cast<unsigned char>(text[at]));
    if (child == children_.end()) break;
    node = child->second;
    const std::int32_t token = token_of_node_[static_cast<std::size_t>(node)];
    if (token != kNone) longest = token;
  }
  return longest;
}

bool AddedTokenFinder::touches_word(std::string_view text, std::size_t begin, std::size_t end,
                                    PatternScratch& scratch) const {
  const auto is_word = [&](std::size_t at) {
    Pattern::Match ignored;
    return word_->find(text.substr(at, code_point_at(text, at).length), 0, ignored, scratch);
  };
  return (begin > 0 && is_word(start_of_last(text, begin))) || (end < text.size() && is_word(end));
}

void AddedTokenFinder::split(std::string_view text, std::vector<TextPart>& parts,
                             PatternScratch& scratch, PlainRanges* plain) const {
  std::size_t done = 0, space_end = 0;
  const auto add_text = [&](std::size_t end) {
    if (end > done) parts.push_back({.text = text.substr(done, end - done)});
  };
  for (std::size_t at = next_candidate(text, 0); at < text.size();) {
    const std::int32_t found = longest_at(text, at);
    if (found == kNone) {
      at = next_candidate(text, at + 1);
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(found)];
    std::size_t begin = at, end = at + token.content.size();
    if (plain != nullptr && token.special && plain->touch(begin, end)) {
      ++plain->kept;
      at = next_candidate(text, at + 1);
      continue;
    }
    at = next_candidate(text, end);
    if (token.single_word && touches_word(text, begin, end, scratch)) continue;
    if (token.lstrip) begin = skip_space_before(text, begin, done);
    // A token of white space inside of what the one before took has the same end.
    if (token.rstrip) end = space_end = end < space_end ? space_end : skip_space_after(text, end);
    add_text(begin);
    parts.push_back({.text = {}, .id = token.id});
    done = end;
  }
  add_text(text.size());
}

}  // namespace dstrain
