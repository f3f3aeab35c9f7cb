#include "engine/data/tokenizer/pattern_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/tokenizer/unicode.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain {

namespace {

/// General categories that PCRE2's Unicode 14 holds, or holds when what came later is added. Of C,
/// Cn and Co the later ones would have to be taken away.
constexpr std::array<std::string_view, 33> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
    "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
    "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf"};

constexpr int kDeepestGroup = 100;
constexpr std::size_t kMaxPatternBytes = 20000;
constexpr int kMaxRepeats = 1000;

std::string hex(char32_t code_point) {
  return fmt::format("\\x{{{:x}}}", static_cast<unsigned>(code_point));
}

/// The inside of a set.
std::string set_of(std::span<const CodeRange> ranges) {
  std::string set;
  for (const CodeRange range : ranges) {
    set += hex(range.first);
    if (range.last != range.first) set += "-" + hex(range.last);
  }
  return set;
}

std::string set_of_category(std::string_view category) {
  return fmt::format("\\p{{{}}}", category) + set_of(newer_than_unicode_14(category));
}

std::string complement_of_white_space() {
  std::string set;
  char32_t next = 0;
  for (const CodeRange space : kWhiteSpace) {
    set += set_of(std::array{CodeRange{next, space.first - 1}});
    next = space.last + 1;
  }
  return set + set_of(std::array{CodeRange{next, 0x10ffff}});
}

std::string set_of_words() {
  return "\\p{Alphabetic}" + set_of_category("M") + set_of_category("Nd") + set_of_category("Pc") +
         set_of(newer_than_unicode_14("L")) + set_of(newer_than_unicode_14("Nl"));
}

/// What stands at one place inside a set: a single code point, or more of them as a piece of a
/// PCRE2 set.
struct SetItem {
  std::optional<char32_t> single;
  std::string set;
};

/// Reads a pattern from left to right and writes its equal.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string run() {
    if (pattern_.size() > kMaxPatternBytes) {
      throw Error(ErrorKind::data, fmt::format("{}: a pattern of {} bytes, expected at most {}",
                                               where_, pattern_.size(), kMaxPatternBytes));
    }
    while (!at_end()) {
      const char c = peek();
      if (c == '\\') {
        escape_outside_set();
      } else if (c == '[') {
        set();
      } else if (c == '(') {
        open_group();
      } else if (c == ')') {
        close_group();
      } else if (c == '|') {
        ++at_;
        out_ += '|';
        repeatable_ = false;
        last_caseless_ = '\0';
      } else if (c == '*' || c == '+' || c == '?') {
        repeat(std::string(1, c));
      } else if (c == '{') {
        counted_repeat();
      } else if (c == '^' || c == '$') {
        refuse("an anchor");
      } else if (c == '.') {
        ++at_;
        item("[^\\n]");
      } else {
        literal(next_code_point());
      }
    }
    if (!groups_.empty()) refuse("a group without its ')'");
    return out_;
  }

 private:
  [[nodiscard]] bool at_end() const { return at_ >= pattern_.size(); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  [[nodiscard]] bool follows(std::string_view text) const {
    return pattern_.substr(at_).starts_with(text);
  }
  [[nodiscard]] bool caseless() const { return !groups_.empty() && groups_.back().caseless; }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::data,
                fmt::format("{}: pattern '{}' holds {} at byte {}, which is not supported", where_,
                            pattern_, what, std::min(at_, pattern_.size())),
                "supported: literals, sets and nested sets, \\s \\S \\d \\w, general categories as "
                "\\p{L}, groups, "
                "(?i:...), look-around, alternatives and repeats");
  }

  char32_t next_code_point() {
    const CodePoint point = code_point_at(pattern_, at_);
    if (!point.valid) refuse("bytes that are not UTF-8");
    at_ += point.length;
    return point.value;
  }

  void item(const std::string& text) {
    out_ += text;
    repeatable_ = true;
  }

  void literal(char32_t c) {
    if (caseless()) refuse_wide_folding(c);
    item(hex(c));
  }

  /// Without regard to case Oniguruma lets one character stand for several ("ss" for U+00DF), PCRE2
  /// does not.
  void refuse_wide_folding(char32_t c) {
    if (c >= 0x80) refuse("a character beyond ASCII in a group without regard to case");
    const char lower = static_cast<char>(std::tolower(static_cast<int>(c)));
    for (const std::string_view pair : {"ss", "ff", "fi", "fl", "st"}) {
      if (last_caseless_ == pair[0] && lower == pair[1])
        refuse(fmt::format("'{}' without regard to case", pair));
    }
    last_caseless_ = lower;
  }

  /// Reads \x41, \x{1F600}, \u00e9 and the control characters; nothing for another escape, which
  /// stays unread.
  std::optional<char32_t> escaped_code_point() {
    const char c = peek(1);
    constexpr std::string_view kNames = "tnrfvae";
    constexpr std::string_view kValues = "\t\n\r\f\v\a\x1b";
    if (const auto found = kNames.find(c); c != '\0' && found != std::string_view::npos) {
      at_ += 2;
      return static_cast<char32_t>(kValues[found]);
    }
    if (c == 'x' && peek(2) == '{') return hex_digits(3, 1, 8, true);
    if (c == 'x') return hex_digits(2, 1, 2, false);
    if (c == 'u') return hex_digits(2, 4, 4, false);
    if (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) != 0)
      return {};
    if (at_ + 1 >= pattern_.size()) refuse("a '\\' at its end");
    ++at_;
    return next_code_point();
  }

  char32_t hex_digits(std::size_t skip, std::size_t min, std::size_t max, bool braced) {
    std::size_t count = 0;
    std::uint64_t value = 0;
    while (count < max && std::isxdigit(static_cast<unsigned char>(peek(skip + count))) != 0) {
      const char digit = peek(skip + count);
      const int low = digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10;
      value = value * 16 + static_cast<std::uint64_t>(low);
      ++count;
    }
    const bool closed = !braced || peek(skip + count) == '}';
    // Two digits without braces name a byte of the encoding, not a code point.
    const bool byte = !braced && max == 2 && value > 0x7f;
    const bool surrogate = value >= 0xd800 && value < 0xe000;
    if (count < min || !closed || byte || surrogate || value > 0x10ffff)
      refuse("a code point by number");
    at_ += skip + count + (braced ? 1 : 0);
    return static_cast<char32_t>(value);
  }

  /// After "\p" or "\P": the category in braces, and whether it is negated.
  std::pair<std::string, bool> category() {
    bool negated = peek(1) == 'P';
    std::size_t from = at_ + 2;
    const std::size_t close = pattern_.find('}', from);
    if (peek(2) != '{' || close == std::string_view::npos) refuse("a property without braces");
    ++from;
    if (pattern_[from] == '^') {
      negated = !negated;
      ++from;
    }
    const std::string name(pattern_.substr(from, close - from));
    if (std::ranges::find(kCategories, name) == kCategories.end()) {
      refuse(fmt::format("the property '{}'", name));
    }
    at_ = close + 1;
    return {name, negated};
  }

  void escape_outside_set() {
    if (const auto c = escaped_code_point()) return literal(*c);
    const char kind = peek(1);
    std::string set;
    bool negated = false;
    if (kind == 'p' || kind == 'P') {
      const auto [name, is_negated] = category();
      set = set_of_category(name);
      negated = is_negated;
    } else {
      set = class_escape(static_cast<char>(std::tolower(static_cast<unsigned char>(kind))));
      if (set.empty()) refuse(fmt::format("'\\{}'", kind));
      negated = std::isupper(static_cast<unsigned char>(kind)) != 0;
      at_ += 2;
    }
    if (caseless()) refuse("a class in a group without regard to case");
    item(fmt::format("[{}{}]", negated ? "^" : "", set));
  }

  static std::string class_escape(char kind) {
    if (kind == 's') return set_of(kWhiteSpace);
    if (kind == 'd') return set_of_category("Nd");
    // Oniguruma's table of the first 256 characters counts these numbers as parts of words.
    if (kind == 'w')
      return set_of_words() +
             set_of(std::array<CodeRange, 3>{{{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}}});
    return {};
  }

  void set() {
    ++at_;
    const bool negated = peek() == '^';
    if (negated) ++at_;
    const std::string items = set_items(1);
    item(fmt::format("[{}{}]", negated ? "^" : "", items));
  }

  /// Up to and with the closing bracket. A set inside a set only adds its members.
  std::string set_items(int depth) {
    if (depth > kDeepestGroup) refuse("sets nested too deeply");
    if (peek() == ']') refuse("an empty set");
    std::string items;
    while (peek() != ']') {
      if (at_end()) refuse("a set without its ']'");
      if (follows("&&")) refuse("an intersection of sets");
      if (follows("[:")) refuse("a POSIX class");
      if (peek() == '[') {
        ++at_;
        if (peek() == '^') refuse("a negated set inside a set");
        items += set_items(depth + 1);
        continue;
      }
      const bool plain_minus = peek() == '-';
      if (plain_minus && !items.empty() && peek(1) != ']') refuse("a '-' that begins no range");
      const SetItem first = set_item();
      if (peek() != '-' || peek(1) == ']' || at_ + 1 >= pattern_.size()) {
        items += first.single ? hex(*first.single) : first.set;
        continue;
      }
      ++at_;
      if (plain_minus || peek() == '[') refuse("a range that is none");
      const SetItem last = set_item();
      if (!first.single || !last.single || *last.single < *first.single)
        refuse("a range that is none");
      if (caseless() && *last.single >= 0x80)
        refuse("a range beyond ASCII in a group without regard to case");
      items += hex(*first.single) + "-" + hex(*last.single);
    }
    ++at_;
    last_caseless_ = '\0';
    return items;
  }

  SetItem set_item() {
    SetItem found;
    if (peek() != '\\') {
      found.single = next_code_point();
    } else if (const auto c = escaped_code_point()) {
      found.single = c;
    } else {
      found.set = set_escape();
      if (caseless()) refuse("a class in a group without regard to case");
    }
    if (caseless() && found.single && *found.single >= 0x80) {
      refuse("a character beyond ASCII in a group without regard to case");
    }
    return found;
  }

  std::string set_escape() {
    const char kind = peek(1);
    const std::size_t begin = at_;
    if (kind == 'p' || kind == 'P') {
      const auto [name, negated] = category();
      if (!negated) return set_of_category(name);
      if (!newer_than_unicode_14(name).empty()) {
        at_ = begin;
        refuse(fmt::format("a negated '{}' inside a set", name));
      }
      return fmt::format("\\P{{{}}}", name);
    }
    const std::string set = kind == 'S' ? complement_of_white_space() : class_escape(kind);
    if (set.empty()) refuse(fmt::format("'\\{}' inside a set", kind));
    at_ += 2;
    return set;
  }

  struct Group {
    bool caseless = false;
    bool repeatable = true;  ///< look-around is not
  };

  void open_group() {
    if (groups_.size() >= kDeepestGroup) refuse("groups nested too deeply");
    Group group{.caseless = caseless()};
    last_caseless_ = '\0';
    if (peek(1) != '?') {
      at_ += 1;
      out_ += "(?:";
      groups_.push_back(group);
      repeatable_ = false;
      return;
    }
    for (const std::string_view opening : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (!follows(opening)) continue;
      group.caseless = group.caseless || opening == "(?i:";
      group.repeatable = opening == "(?:" || opening == "(?>" || opening == "(?i:";
      at_ += opening.size();
      out_ += opening;
      groups_.push_back(group);
      repeatable_ = false;
      return;
    }
    refuse("a group of this kind");
  }

  void close_group() {
    if (groups_.empty()) refuse("a ')' without its group");
    ++at_;
    out_ += ')';
    repeatable_ = groups_.back().repeatable;
    groups_.pop_back();
    last_caseless_ = '\0';
  }

  void repeat(const std::string& text) {
    if (!repeatable_) refuse("a repeat of nothing");
    ++at_;
    out_ += text;
    if (peek() == '?' || peek() == '+') {
      out_ += peek();
      ++at_;
    }
    repeatable_ = false;
    last_caseless_ = '\0';
  }

  void counted_repeat() {
    std::size_t close = at_ + 1;
    std::string min, max;
    bool comma = false;
    for (; close < pattern_.size() && pattern_[close] != '}'; ++close) {
      const char c = pattern_[close];
      if (c == ',' && !comma) {
        comma = true;
      } else if (c >= '0' && c <= '9') {
        (comma ? max : min) += c;
      } else {
        refuse("a '{'");
      }
    }
    if (close >= pattern_.size() || min.empty() || !repeatable_) refuse("a '{'");
    for (const std::string& count : {min, max}) {
      if (count.size() > 4 || (!count.empty() && std::stoi(count) > kMaxRepeats))
        refuse("more repeats than 1000");
    }
    at_ = close + 1;
    // What follows means something else in each of the two syntaxes.
    if (peek() == '?' || peek() == '+' || peek() == '*' || peek() == '{')
      refuse("a repeat of a repeat");
    out_ += fmt::format("{{{}{}{}}}", min, comma ? "," : "", max);
    repeatable_ = false;
    last_caseless_ = '\0';
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
  std::vector<Group> groups_;
  bool repeatable_ = false;  ///< whether a repeat may follow
  char last_caseless_ = '\0';
};

}  // namespace

std::string to_pcre2(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

std::string literal_to_pcre2(std::string_view text) {
  std::string pattern;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    pattern += hex(point.value);
    at += point.length;
  }
  return pattern;
}

std::string rust_word_class() { return fmt::format("[{}\\x{{200c}}\\x{{200d}}]", set_of_words()); }

}  // namespace dstrain
