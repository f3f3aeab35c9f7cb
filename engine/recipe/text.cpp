#include "engine/recipe/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <system_error>

namespace dstrain {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Edits between two words, a swap of neighbours counting as one. Damerau 1964, in the restricted
/// form.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t differs = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + differs});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

/// What a number written in another way would be here; empty when it is no number in any way.
std::string in_decimal(const std::string& text) {
  std::string digits;
  std::copy_if(text.begin(), text.end(), std::back_inserter(digits),
               [](char c) { return c != '_'; });
  const bool negative = !digits.empty() && digits[0] == '-';
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.erase(0, 1);
  if (digits.empty() || !is_digit(digits[0]) || digits.size() > 18) return {};
  const int base = digits.starts_with("0x") ? 16 : digits.starts_with("0o") ? 8 : 10;
  if (base != 10) digits.erase(0, 2);
  char* end = nullptr;
  const long value = std::strtol(digits.c_str(), &end, base);
  if (*end == '\0' && !digits.empty()) return fmt::format("{}{}", negative ? "-" : "", value);
  double real = 0;
  const char* last = digits.data() + digits.size();
  const auto [parsed, failure] = std::from_chars(digits.data(), last, real);
  if (base != 10 || failure != std::errc{} || parsed != last || !(real < 1e15)) return {};
  return fmt::format("{}{}", negative ? "-" : "", real);
}

bool is_whole(const std::string& text) {
  return !text.empty() && std::all_of(text.begin() + (text[0] == '-'), text.end(), is_digit) &&
         text != "-";
}

/// A number of YAML's core schema, but without leading zeros:
/// [+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?
bool is_yaml_number(std::string_view text) {
  std::size_t at = 0;
  const auto digits = [&] {
    const std::size_t from = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return at - from;
  };
  const auto take = [&](std::string_view any) {
    const bool found = at < text.size() && any.find(text[at]) != std::string_view::npos;
    at += found ? 1 : 0;
    return found;
  };
  take("+-");
  const bool zero = at < text.size() && text[at] == '0';
  const std::size_t whole = digits();
  if (zero && whole > 1) return false;
  const std::size_t after = take(".") ? digits() : 0;
  if (whole == 0 && after == 0) return false;
  if (take("eE")) {
    take("+-");
    if (digits() == 0) return false;
  }
  return at == text.size();
}

bool is_not_finite(std::string word) {
  std::transform(word.begin(), word.end(), word.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (!word.empty() && (word[0] == '-' || word[0] == '+')) word.erase(0, 1);
  static constexpr std::array<std::string_view, 5> kWords = {".nan", ".inf", "nan", "inf",
                                                             "infinity"};
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

std::string write_as(const std::string& decimal) {
  return decimal.empty() ? std::string() : fmt::format("write {}", decimal);
}

}  // namespace

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  if (word.empty() || word.size() > 64) return {};
  const std::size_t limit = std::max<std::size_t>(1, word.size() / 3);
  std::string_view best;
  std::size_t best_distance = limit + 1, best_begin = 0;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance > std::min(limit, best_distance)) continue;
    // The nearer of two as near is the one that begins as the word does: bloom-7b1 for bloom-7b.
    const auto begin =
        static_cast<std::size_t>(std::ranges::mismatch(word, candidate).in1 - word.begin());
    if (distance == best_distance && begin <= best_begin) continue;
    best = candidate;
    best_distance = distance;
    best_begin = begin;
  }
  return best;
}

std::string one_of(const std::vector<std::string_view>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

Expanded expand_variables(std::string_view text) {
  Expanded result;
  std::size_t at = 0;
  while (at < text.size()) {
    const char next = at + 1 < text.size() ? text[at + 1] : '\0';
    if (text[at] != '$' || (next != '$' && next != '{')) {
      result.text += text[at++];
      continue;
    }
    if (next == '$') {
      result.text += '$';
      at += 2;
      continue;
    }
    const std::size_t close = text.find('}', at);
    if (close == std::string_view::npos) {
      result.mistake = "'${' without its '}'";
      result.hint = "write ${NAME} or ${NAME:-default}; $$ stands for one $";
      return result;
    }
    const std::string_view inside = text.substr(at + 2, close - at - 2);
    const std::size_t colon = inside.find(":-");
    const std::string name(inside.substr(0, colon));
    if (name.empty() || is_digit(name[0]) || !std::all_of(name.begin(), name.end(), [](char c) {
          return is_letter(c) || is_digit(c);
        })) {
      result.mistake = fmt::format("'{}' is not the name of an environment variable", shown(name));
      result.hint = "write ${NAME} or ${NAME:-default}; $$ stands for one $";
      return result;
    }
    const char* value = std::getenv(name.c_str());
    const bool has_default = colon != std::string_view::npos;
    if (value != nullptr && (*value != '\0' || !has_default)) {
      if (!is_plain_text(value)) {
        result.mistake =
            fmt::format("environment variable {} holds control characters or broken UTF-8", name);
        result.hint = "set it to plain text";
        return result;
      }
      result.text += value;
    } else if (has_default) {
      result.text += inside.substr(colon + 2);
    } else {
      result.mistake = fmt::format("environment variable {} is not set", name);
      result.hint = fmt::format("export {0}=..., or give a default: ${{{0}:-default}}", name);
      return result;
    }
    if (std::find(result.variables.begin(), result.variables.end(), name) ==
        result.variables.end()) {
      result.variables.push_back(name);
    }
    at = close + 1;
  }
  return result;
}

Number<long> read_integer(const std::string& text) {
  const std::size_t first = !text.empty() && text[0] == '-' ? 1 : 0;
  if (is_whole(text) && (text[first] != '0' || text.size() == 1)) {
    if (text.size() - first > 18) {
      return {{}, fmt::format("{} is beyond any whole number here", shown(text)), {}};
    }
    return {std::strtol(text.c_str(), nullptr, 10), {}, {}};
  }
  if (is_whole(text)) {
    return {{},
            fmt::format("'{}' begins with 0, which some readers take for octal", shown(text)),
            write_as(in_decimal(text))};
  }
  const std::string decimal = in_decimal(text);
  return {{},
          fmt::format("'{}' is not a whole number", shown(text)),
          is_whole(decimal) ? write_as(decimal) : std::string()};
}

Number<double> read_real(const std::string& text) {
  if (is_not_finite(text)) {
    return {{}, fmt::format("'{}' is not a finite number", shown(text)), {}};
  }
  if (!is_yaml_number(text)) {
    return {{}, fmt::format("'{}' is not a number", shown(text)), write_as(in_decimal(text))};
  }
  double value = 0;
  const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
  if (std::from_chars(begin, text.data() + text.size(), value).ec != std::errc{}) {
    return {{}, fmt::format("{} is beyond the range of a double", shown(text)), {}};
  }
  return {value, {}, {}};
}

}  // namespace dstrain
