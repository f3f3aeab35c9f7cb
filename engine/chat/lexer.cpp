#include "engine/chat/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/base/printable.h"
#include "engine/chat/characters.h"

namespace dstrain::chat {

namespace {

std::string with_plain_line_ends(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      out.push_back(text[i]);
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return begins_name(c) || is_digit(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(with_plain_line_ends(text)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const std::size_t tag = next_tag();
      const char kind = tag < text_.size() ? text_[tag + 1] : '\0';
      if (kind == '\0') {
        add_data(text_.size());
        break;
      }
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      add_data(data_end(tag, kind, sign));
      move_to(tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
      if (kind == '#') {
        comment();
      } else {
        expression(kind == '%');
      }
    }
    tokens_.push_back({.kind = Token::Kind::end, .line = line_, .text = {}});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string message) const {
    throw SyntaxFault{line_, std::move(message)};
  }

  [[nodiscard]] char look(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  [[nodiscard]] std::size_t next_tag() const {
    for (std::size_t i = at_; (i = text_.find('{', i)) != std::string::npos; ++i) {
      const char next = i + 1 < text_.size() ? text_[i + 1] : '\0';
      if (next == '%' || next == '{' || next == '#') return i;
    }
    return text_.size();
  }

  /// Where the text before a tag ends, once spaces before the tag are taken off.
  [[nodiscard]] std::size_t data_end(std::size_t tag, char kind, char sign) const {
    const std::string_view data = std::string_view(text_).substr(at_, tag - at_);
    if (sign == '-') return at_ + end_without_spaces(data);
    if (sign == '+' || kind == '{') return tag;
    const std::size_t line_end = data.rfind('\n');
    const std::size_t line = line_end == std::string_view::npos ? 0 : line_end + 1;
    const bool whole_line = line > 0 || line_starts_;
    return whole_line && skip_spaces(data, line) == data.size() ? at_ + line : tag;
  }

  void add_data(std::size_t end) {
    if (end > at_)
      tokens_.push_back(
          {.kind = Token::Kind::data, .line = line_, .text = text_.substr(at_, end - at_)});
    move_to(end);
  }

  void move_to(std::size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    if (to > at_) line_starts_ = text_[to - 1] == '\n';
    at_ = to;
  }

  /// Behind the two characters that end a tag, and the spaces or the line end that go with them.
  void end_tag(std::size_t at, bool strips, bool trims) {
    at += 2;
    if (strips) {
      at = skip_spaces(text_, at);
    } else if (trims && at < text_.size() && text_[at] == '\n') {
      ++at;
    }
    move_to(at);
  }

  void comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string::npos) fail("a comment has no end: '#}' is missing");
    const char sign = end > at_ ? text_[end - 1] : '\0';
    end_tag(end, sign == '-', sign != '+');
  }

  /// At `-%}`, `+%}` or `%}`: takes it.
  bool takes_end(bool block) {
    const char* closing = block ? "%}" : "}}";
    const char sign = look();
    const bool signed_end = sign == '-' || (block && sign == '+');
    const std::size_t at = at_ + (signed_end ? 1 : 0);
    if (text_.compare(at, 2, closing) != 0) return false;
    tokens_.push_back({.kind = block ? Token::Kind::block_end : Token::Kind::print_end,
                       .line = line_,
                       .text = {}});
    end_tag(at, sign == '-', block && sign != '+');
    return true;
  }

  void expression(bool block) {
    const int begin = line_;
    tokens_.push_back({.kind = block ? Token::Kind::block_begin : Token::Kind::print_begin,
                       .line = line_,
                       .text = {}});
    std::string open;
    while (at_ < text_.size()) {
      if (open.empty() && takes_end(block)) return;
      if (const std::size_t next = skip_spaces(text_, at_); next > at_) {
        move_to(next);
        continue;
      }
      token(open);
    }
    line_ = begin;
    fail(fmt::format("a tag has no end: '{}' is missing", block ? "%}" : "}}"));
  }

  void token(std::string& open) {
    const char c = look();
    if (c == '\'' || c == '"') return text_literal(c);
    if (is_digit(c)) return number();
    if (begins_name(c)) {
      std::size_t end = at_;
      while (end < text_.size() && is_word(text_[end])) ++end;
      tokens_.push_back(
          {.kind = Token::Kind::name, .line = line_, .text = text_.substr(at_, end - at_)});
      return move_to(end);
    }
    symbol(open);
  }

  void symbol(std::string& open) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    std::string found(1, look());
    for (const std::string_view two : kTwo)
      if (text_.compare(at_, 2, two) == 0) found = two;
    if (found.size() == 1 &&
        std::string_view("+-/*%~[](){}=.:|,><").find(found[0]) == std::string_view::npos) {
      std::size_t end = at_;
      static_cast<void>(next_character(text_, end));
      fail(fmt::format("'{}' is not expected in a tag", shown(text_.substr(at_, end - at_))));
    }
    const char c = found[0];
    if (c == '(' || c == '[' || c == '{') open.push_back(c);
    if (c == ')' || c == ']' || c == '}') {
      const char opening = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open.empty() || open.back() != opening) fail(fmt::format("'{}' closes nothing", c));
      open.pop_back();
    }
    tokens_.push_back({.kind = Token::Kind::symbol, .line = line_, .text = found});
    move_to(at_ + found.size());
  }

  void number() {
    std::size_t end = at_;
    std::string digits;
    const auto take_digits = [&] {
      while (end < text_.size() &&
             (is_digit(text_[end]) ||
              (text_[end] == '_' && end + 1 < text_.size() && is_digit(text_[end + 1])))) {
        if (text_[end] != '_') digits.push_back(text_[end]);
        ++end;
      }
    };
    take_digits();
    bool real = false;
    const auto digit_at = [&](std::size_t i) { return i < text_.size() && is_digit(text_[i]); };
    if (end < text_.size() && text_[end] == '.' && digit_at(end + 1) && !after_dot()) {
      real = true;
      digits.push_back('.');
      ++end;
      take_digits();
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E') && !after_dot()) {
      const std::size_t sign =
          end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 1 : 0;
      if (digit_at(end + 1 + sign)) {
        real = true;
        digits.push_back('e');
        if (sign == 1 && text_[end + 1] == '-') digits.push_back('-');
        end += 1 + sign;
        take_digits();
      }
    }
    Token token{.kind = real ? Token::Kind::real : Token::Kind::integer, .line = line_, .text = {}};
    const char* last = digits.data() + digits.size();
    const auto read = real ? std::from_chars(digits.data(), last, token.real)
                           : std::from_chars(digits.data(), last, token.integer);
    const bool leading_zero = !real && digits.size() > 1 && digits[0] == '0' && token.integer != 0;
    if (read.ec != std::errc{} || leading_zero || (end < text_.size() && is_word(text_[end])))
      fail(
          fmt::format("the number '{}' is not supported", shown(text_.substr(at_, end + 1 - at_))));
    tokens_.push_back(std::move(token));
    move_to(end);
  }

  /// A number behind a dot is the index of an item: `x.0`.
  [[nodiscard]] bool after_dot() const { return at_ > 0 && text_[at_ - 1] == '.'; }

  void text_literal(char quote) {
    const int begin = line_;
    std::string value;
    std::size_t at = at_ + 1;
    for (; at < text_.size() && text_[at] != quote; ++at) {
      if (text_[at] == '\\') {
        at = escape(value, at + 1);
      } else {
        value.push_back(text_[at]);
      }
    }
    if (at >= text_.size()) fail("a text has no end: its quote is missing");
    tokens_.push_back({.kind = Token::Kind::text, .line = begin, .text = std::move(value)});
    move_to(at + 1);
  }

  /// Reads an escape as Python does, and returns its last byte.
  std::size_t escape(std::string& value, std::size_t at) {
    if (at >= text_.size()) fail("a text has no end: its quote is missing");
    static constexpr std::string_view kNames = "\\'\"abfnrtv";
    static constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    const char c = text_[at];
    if (const std::size_t known = kNames.find(c); known != std::string_view::npos) {
      value.push_back(kMeanings[known]);
      return at;
    }
    if (c == '\n') return at;
    if (c >= '0' && c <= '7') {
      std::size_t end = at;
      while (end < text_.size() && end < at + 3 && text_[end] >= '0' && text_[end] <= '7') ++end;
      append_code(value, at, end, 8);
      return end - 1;
    }
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      append_code(value, at + 1, at + 1 + digits, 16);
      return at + digits;
    }
    if (c == 'N') fail("the escape \\N is not supported");
    value.append("\\").push_back(c);
    return at;
  }

  void append_code(std::string& value, std::size_t begin, std::size_t end, int base) {
    std::uint32_t code = 0;
    const char* first = text_.data() + begin;
    const char* last = text_.data() + std::min(end, text_.size());
    const auto read = begin < end ? std::from_chars(first, last, code, base)
                                  : std::from_chars_result{first, std::errc::invalid_argument};
    const bool character = code < 0xD800 || (code > 0xDFFF && code < 0x110000);
    if (read.ec != std::errc{} || read.ptr != text_.data() + end || !character)
      fail("an escape in a text names no character");
    append_utf8(value, code);
  }

  std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenise_template(std::string_view text) {
  if (first_invalid_utf8(text) != std::string_view::npos)
    throw SyntaxFault{1, "the template is not UTF-8"};
  return Lexer(text).run();
}

}  // namespace dstrain::chat
