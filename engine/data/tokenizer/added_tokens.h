#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/data/tokenizer/byte_range.h"
#include "engine/data/tokenizer/pattern.h"

namespace dstrain {

/// A token that is found in the text before it is cut into words ("added_tokens" of
/// tokenizer.json).
struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool single_word = false;  ///< only where no letter or digit touches it
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< and after it
  bool normalized = false;   ///< looked for in the normalised text, in its own normalised form
  bool special = false;      ///< left out by decode() on demand
};

/// Part of a text: a token, or text that is still to be cut.
struct TextPart {
  static constexpr std::int32_t kText = -1;
  std::string_view text;
  std::int32_t id = kText;
};

/// Where special tokens stay text: ranges in their order, apart from each other.
struct PlainRanges {
  std::span<const ByteRange> ranges;
  std::int64_t kept = 0;  ///< special tokens that were found there

  [[nodiscard]] bool touch(std::size_t begin, std::size_t end) const;
};

/// Finds a set of texts at once: at each place the longest that stands there, from left to right.
class AddedTokenFinder {
 public:
  /// Error{data} beginning with `path` when two tokens have the same content.
  AddedTokenFinder(std::vector<AddedToken> tokens, const std::string& path);

  /// Appends the parts of valid UTF-8 in order. `plain` may be null.
  void split(std::string_view text, std::vector<TextPart>& parts, PatternScratch& scratch,
             PlainRanges* plain = nullptr) const;

  [[nodiscard]] bool empty() const { return tokens_.empty(); }

 private:
  static constexpr std::int32_t kNone = -1;

  /// Longest token that begins at byte `at`; kNone when none does.
  [[nodiscard]] std::int32_t longest_at(std::string_view text, std::size_t at) const;
  [[nodiscard]] std::size_t next_candidate(std::string_view text, std::size_t at) const;
  [[nodiscard]] bool touches_word(std::string_view text, std::size_t begin, std::size_t end,
                                  PatternScratch& scratch) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> first_bytes_{};
  /// Child of (node << 8 | byte); the root is node 0.
  std::unordered_map<std::uint64_t, std::int32_t> children_;
  std::vector<std::int32_t> token_of_node_{kNone};
  std::unique_ptr<Pattern> word_;  ///< only when a token is single_word
};

}  // namespace dstrain
