#include "engine/infer/math_answer.h"

#include <utf8proc.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>
#include <vector>

#include "engine/chat/characters.h"

namespace dstrain {
namespace {

/// Behind the last mark.
std::optional<std::string_view> marked_part(std::string_view text) {
  constexpr std::string_view kMark = "The answer is: ";
  const std::size_t at = text.rfind(kMark);
  if (at == std::string_view::npos) return std::nullopt;
  return text.substr(at + kMark.size());
}

/// str.strip of Python.
std::string_view without_spaces_around(std::string_view text) {
  text.remove_prefix(chat::skip_spaces(text));
  return text.substr(0, chat::end_without_spaces(text));
}

/// A decimal digit of any script as 0 to 9 of ASCII, as `\d`, float and int of Python take them;
/// nothing where it is none.
std::optional<char> digit_of(char32_t c) {
  const auto is_digit = [](char32_t one) {
    return utf8proc_category(static_cast<utf8proc_int32_t>(one)) == UTF8PROC_CATEGORY_ND;
  };
  if (!is_digit(c)) return std::nullopt;
  int value = 0;  // digits stand ten in a row, from zero on
  for (; is_digit(c - 1); --c) ++value;
  return static_cast<char>('0' + value % 10);
}

/// Digits and marks of numbers as ASCII; a blank for each other character.
std::string in_ascii(std::string_view text) {
  std::string ascii;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = chat::next_character(text, at);
    if (const auto digit = digit_of(c))
      ascii += *digit;
    else
      ascii += c < 0x80 ? static_cast<char>(c) : ' ';
  }
  return ascii;
}

/// float of Python; infinite beyond its range.
double float_of(const std::string& digits) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  double value = 0;
  const bool plus = digits.starts_with('+');
  const auto [end, error] =
      std::from_chars(digits.data() + (plus ? 1 : 0), digits.data() + digits.size(), value);
  if (error != std::errc::result_out_of_range) return value;
  const bool small = digits.find_first_of("123456789") > digits.find('.');
  return small ? 0 : digits.starts_with('-') ? -kInfinite : kInfinite;
}

struct FoundNumber {
  std::string sign, whole;  ///< digits before the separator, maybe none
  char separator = 0;       ///< one of .,/ or 0
  std::string rest;         ///< digits behind it
};

/// The first match of [\-+]?\d*[\.,/]?\d+
std::optional<FoundNumber> first_number(const std::string& text) {
  const auto digits_at = [&text](std::size_t at) {
    const std::size_t end = text.find_first_not_of("0123456789", at);
    return text.substr(at, end == std::string::npos ? end : end - at);
  };
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    std::size_t at = begin;
    FoundNumber found;
    if (text[at] == '-' || text[at] == '+') found.sign = text[at++];
    if (at >= text.size()) break;
    found.whole = digits_at(at);
    at += found.whole.size();
    if (at < text.size() && std::string_view(".,/").find(text[at]) != std::string_view::npos) {
      found.rest = digits_at(at + 1);
      if (!found.rest.empty()) found.separator = text[at];
    }
    if (!found.whole.empty() || !found.rest.empty()) return found;
  }
  return std::nullopt;
}

std::optional<double> value_of(const FoundNumber& number) {
  const std::string before = number.sign + number.whole;
  if (number.separator != '/')
    return float_of(number.separator == '.' ? before + "." + number.rest : before + number.rest);
  if (number.whole.empty()) return std::nullopt;
  const double numerator = float_of(before);
  if (number.rest == "0") return numerator;
  const double denominator = float_of(number.rest);
  if (denominator == 0 || std::isinf(denominator)) return std::nullopt;
  return numerator / denominator;
}

void replace_each(std::u32string& text, std::u32string_view what, std::u32string_view by) {
  for (std::size_t at = text.find(what); at != std::u32string::npos;
       at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

std::vector<std::u32string> split_at(const std::u32string& text, std::u32string_view mark) {
  std::vector<std::u32string> parts;
  std::size_t begin = 0;
  for (std::size_t at = text.find(mark); at != std::u32string::npos; at = text.find(mark, begin)) {
    parts.push_back(text.substr(begin, at - begin));
    begin = at + mark.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// Nothing, of what follows: the script fails there.

/// \frac12 becomes \frac{1}{2}, \frac1{72} \frac{1}{72}.
std::optional<std::u32string> with_whole_fractions(const std::u32string& text) {
  const std::vector<std::u32string> parts = split_at(text, U"\\frac");
  std::u32string result = parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::u32string& part = parts[i];
    if (part.empty()) return std::nullopt;
    result += U"\\frac";
    if (part[0] == U'{') {
      result += part;
      continue;
    }
    if (part.size() < 2) return text;
    result.append(U"{").append(1, part[0]).append(U"}");
    if (part[1] == U'{')
      result += part.substr(1);
    else
      result.append(U"{").append(1, part[1]).append(U"}").append(part, 2);
  }
  return result;
}

/// \sqrt3 becomes \sqrt{3}.
std::optional<std::u32string> with_whole_roots(const std::u32string& text) {
  const std::vector<std::u32string> parts = split_at(text, U"\\sqrt");
  std::u32string result = parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::u32string& part = parts[i];
    if (part.empty()) return std::nullopt;
    result += U"\\sqrt";
    if (part[0] == U'{')
      result += part;
    else
      result.append(U"{").append(1, part[0]).append(U"}").append(part, 1);
  }
  return result;
}

/// str(int(text)) of Python.
std::optional<std::u32string> whole_number(std::u32string_view text) {
  while (!text.empty() && chat::is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && chat::is_space(text.back())) text.remove_suffix(1);
  const bool negative = text.starts_with(U'-');
  if (negative || text.starts_with(U'+')) text.remove_prefix(1);
  std::u32string digits;
  bool joins = false;  // the character before is a digit, so that _ may follow
  for (const char32_t c : text) {
    const auto digit = digit_of(c);
    if (!digit && (c != U'_' || !joins)) return std::nullopt;
    if (digit && digits == U"0") digits.clear();
    if (digit) digits += static_cast<char32_t>(*digit);
    joins = digit.has_value();
  }
  if (!joins) return std::nullopt;
  return negative && digits != U"0" ? U"-" + digits : digits;
}

/// 3/4 becomes \frac{3}{4}.
std::optional<std::u32string> with_fraction_of_numbers(const std::u32string& text) {
  const std::vector<std::u32string> parts = split_at(text, U"/");
  if (parts.size() != 2) return text;
  const auto over = whole_number(parts[0]), under = whole_number(parts[1]);
  if (!over || !under) return std::nullopt;
  if (text != *over + U"/" + *under) return text;
  return U"\\frac{" + *over + U"}{" + *under + U"}";
}

/// strip_string of util.py.
std::optional<std::u32string> plain_expression(std::string_view utf8) {
  std::u32string text;
  for (std::size_t at = 0; at < utf8.size();) text += chat::next_character(utf8, at);
  replace_each(text, U"\n", U"");
  replace_each(text, U"\\!", U"");
  replace_each(text, U"\\\\", U"\\");
  replace_each(text, U"tfrac", U"frac");
  replace_each(text, U"dfrac", U"frac");
  for (const char32_t* mark : {U"\\left", U"\\right", U"^{\\circ}", U"^\\circ", U"\\$"})
    replace_each(text, mark, U"");
  const std::vector<std::u32string> units = split_at(text, U"\\text{ ");
  if (units.size() > 2) return std::nullopt;
  text = units[0];
  replace_each(text, U"\\%", U"");
  replace_each(text, U" .", U" 0.");
  replace_each(text, U"{.", U"{0.");
  if (text.empty()) return text;
  if (text[0] == U'.') text.insert(0, U"0");
  const std::vector<std::u32string> sides = split_at(text, U"=");
  if (sides.size() == 2 && sides[0].size() <= 2) text = sides[1];
  const auto rooted = with_whole_roots(text);
  if (!rooted) return std::nullopt;
  text = *rooted;
  replace_each(text, U" ", U"");
  const auto divided = with_whole_fractions(text);
  if (!divided) return std::nullopt;
  return with_fraction_of_numbers(*divided == U"0.5" ? U"\\frac{1}{2}" : *divided);
}

}  // namespace

std::optional<double> gsm_answer(std::string_view text) {
  const auto part = marked_part(text);
  if (!part) return std::nullopt;
  const auto number = first_number(in_ascii(*part));
  const auto value = number ? value_of(*number) : std::nullopt;
  if (!value || std::isinf(*value)) return std::nullopt;
  return std::nearbyint(*value) + 0.0;  // no -0; the mode of rounding is half to even
}

std::optional<std::string> math_answer(std::string_view text) {
  auto part = marked_part(text);
  if (!part) return std::nullopt;
  part = without_spaces_around(part->substr(0, part->find(".\n")));
  if (part->ends_with('.')) part->remove_suffix(1);
  return std::string(without_spaces_around(*part));
}

bool are_equal_math(std::string_view one, std::string_view other) {
  const auto left = plain_expression(one), right = plain_expression(other);
  return left && right ? *left == *right : one == other;
}

}  // namespace dstrain
