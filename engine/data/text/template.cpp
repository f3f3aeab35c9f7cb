#include "engine/data/text/template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace dstrain::text {
namespace {

/// As Python's repr() writes it: the fewest digits that give the number again, with an exponent
/// below 1e-4 and from 1e16 on.
std::string python_text(double number) {
  std::array<char, 32> buffer{};
  const auto [end, error] =
      std::to_chars(buffer.begin(), buffer.end(), number, std::chars_format::scientific);
  DSTRAIN_CHECK(error == std::errc(), "a number of more than 32 characters");
  std::string_view text(buffer.data(), end);  // such as -1.25e+20
  std::string sign;
  if (text.starts_with('-')) {
    sign = "-";
    text.remove_prefix(1);
  }
  const std::size_t mark = text.find('e');
  const std::string_view exponent_text = text.substr(mark + 1);
  int exponent = 0;
  std::from_chars(exponent_text.data() + (exponent_text.front() == '+' ? 1 : 0), end, exponent);
  std::string digits(text.substr(0, mark));
  std::erase(digits, '.');
  if (exponent < -4 || exponent >= 16) {
    if (digits.size() > 1) digits.insert(1, ".");
    return fmt::format("{}{}e{}{:02}", sign, digits, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() < whole + 1) digits.append(whole + 1 - digits.size(), '0');
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace

Template::Template(std::string_view text, const std::string& key) {
  const auto fail = [&](std::size_t at, const char* what) {
    throw Error(ErrorKind::usage, fmt::format("{}: character {}: {}", key, at + 1, what),
                "a field stands in braces, {question}; braces themselves are doubled, {{ and }}");
  };
  std::string plain;
  const auto end_plain = [&] {
    if (!plain.empty()) pieces_.push_back({.text = std::exchange(plain, {})});
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c != '{' && c != '}') {
      plain += c;
    } else if (text.substr(at + 1).starts_with(c)) {
      plain += c;
      ++at;
    } else if (c == '}') {
      fail(at, "'}' without '{'");
    } else {
      const std::size_t close = text.find_first_of("{}", at + 1);
      if (close == std::string_view::npos || text[close] == '{') fail(at, "'{' without '}'");
      if (close == at + 1) fail(at, "no name between the braces");
      end_plain();
      pieces_.push_back(
          {.text = std::string(text.substr(at + 1, close - at - 1)), .is_field = true});
      at = close;
    }
  }
  end_plain();
}

bool Template::has_fields() const { return std::ranges::any_of(pieces_, &Piece::is_field); }

bool Template::names(std::string_view field) const {
  return std::ranges::any_of(
      pieces_, [&](const Piece& piece) { return piece.is_field && piece.text == field; });
}

std::string Template::fill(const nlohmann::json& object, std::string& text) const {
  text.clear();
  for (const Piece& piece : pieces_) {
    if (!piece.is_field) {
      text += piece.text;
      continue;
    }
    const auto field = object.find(piece.text);
    if (field == object.end()) return fmt::format("it has no {}", piece.text);
    if (field->is_string()) {
      text += field->get_ref<const std::string&>();
    } else if (field->is_number_float()) {
      text += python_text(field->get<double>());
    } else if (field->is_number()) {
      text += field->dump();
    } else if (field->is_boolean()) {
      text += field->get<bool>() ? "True" : "False";
    } else {
      return fmt::format("{} is {}, expected text", piece.text, kind_of(*field));
    }
  }
  return "";
}

const char* kind_of(const nlohmann::json& value) {
  if (value.is_null()) return "null";
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return "text";
  return value.is_boolean() ? "true or false" : "a number";
}

}  // namespace dstrain::text
