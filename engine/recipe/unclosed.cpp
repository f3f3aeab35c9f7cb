#include "engine/recipe/unclosed.h"

#include <algorithm>
#include <vector>

namespace dstrain {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

/// Goes through the text line by line and knows where a value may begin: a quote or a bracket
/// inside a plain word is part of it.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::optional<Unclosed> find() {
    while (at_ < text_.size() && !mismatch_) {
      end_ = std::min(text_.find_first_of("\r\n", at_), text_.size());
      if (!in_block_text()) {
        if (const std::size_t quote = scan_line(); quote != kNone)
          return Unclosed{quote, text_[quote]};
      }
      at_ = end_ + 1;
    }
    if (mismatch_ || brackets_.empty()) return std::nullopt;
    return Unclosed{brackets_.back(), text_[brackets_.back()]};
  }

 private:
  [[nodiscard]] static bool is_blank(char c) { return c == ' ' || c == '\t'; }
  [[nodiscard]] bool in_flow() const { return !brackets_.empty(); }

  /// Lines after `key: |` that are indented deeper than it.
  bool in_block_text() {
    if (!block_indent_) return false;
    const std::size_t first = text_.find_first_not_of(' ', at_);
    if (first >= end_ || first - at_ > *block_indent_) return true;
    block_indent_.reset();
    return false;
  }

  /// Place of a quote that the line does not close, or none.
  std::size_t scan_line() {
    const std::size_t begin = at_;
    indent_ = std::min(text_.find_first_not_of(' ', begin), end_) - begin;
    may_begin_ = true;
    if (text_.substr(begin, 3) == "---") at_ += 3;
    while (at_ < end_) {
      const char c = text_[at_];
      if (is_blank(c)) {
        ++at_;
      } else if (c == '#' && (at_ == begin || is_blank(text_[at_ - 1]))) {
        break;
      } else if (may_begin_ && (c == '"' || c == '\'')) {
        const std::size_t close = closing_quote();
        if (close == kNone) return at_;
        at_ = close + 1;
        // {"key":value} needs no space.
        if (at_ < end_ && text_[at_] == ':') ++at_;
      } else if (may_begin_ && !in_flow() && (c == '|' || c == '>')) {
        block_indent_ = indent_;
        break;
      } else {
        pass(c);
        ++at_;
      }
    }
    return kNone;
  }

  /// End of the quote at `at_`, in its line; none without one.
  [[nodiscard]] std::size_t closing_quote() const {
    const char quote = text_[at_];
    for (std::size_t i = at_ + 1; i < end_; ++i) {
      if (quote == '"' && text_[i] == '\\') {
        ++i;
      } else if (text_[i] == quote) {
        if (quote == '"' || i + 1 >= end_ || text_[i + 1] != quote) return i;
        ++i;  // '' is one ' in single quotes
      }
    }
    return kNone;
  }

  /// A character of a plain word, or one that ends it.
  void pass(char c) {
    if ((c == '[' || c == '{') && (may_begin_ || in_flow())) {
      brackets_.push_back(at_);
      may_begin_ = true;
    } else if ((c == ']' || c == '}') && in_flow()) {
      mismatch_ = mismatch_ || text_[brackets_.back()] != (c == ']' ? '[' : '{');
      brackets_.pop_back();
      may_begin_ = true;
    } else if (c == ',' && in_flow()) {
      may_begin_ = true;
    } else {
      const char next = at_ + 1 < end_ ? text_[at_ + 1] : ' ';
      const bool ends =
          is_blank(next) || (in_flow() && std::string_view(",[]{}").find(next) != kNone);
      may_begin_ = ends && (c == ':' || (may_begin_ && (c == '-' || c == '?')));
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;     ///< of the line
  std::size_t indent_ = 0;  ///< of the line
  bool may_begin_ = true;
  std::vector<std::size_t> brackets_;
  bool mismatch_ = false;  ///< the parser names the place
  std::optional<std::size_t> block_indent_;
};

}  // namespace

std::optional<Unclosed> find_unclosed(std::string_view text) { return Scanner(text).find(); }

}  // namespace dstrain
