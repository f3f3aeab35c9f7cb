#include "engine/trace/json_text.h"

#include <array>
#include <charconv>
#include <cstring>
#include <limits>

namespace dstrain::trace {
namespace {

constexpr int kMaxDepth = 64;

/// Bytes that a text holds as they are.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> plain{};
  for (std::size_t c = 0x20; c < 256; ++c) plain[c] = c != '"' && c != '\\';
  return plain;
}();

bool is_plain(char c) { return kPlain[static_cast<unsigned char>(c)]; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

Reading skip_digits(TextCursor& c) {
  if (!is_digit(*c.p)) return c.stop("a number without digits");
  while (is_digit(*c.p)) ++c.p;
  return Reading::whole;
}

Reading skip_word(TextCursor& c, std::string_view word) {
  for (const char letter : word) {
    if (*c.p != letter) return c.stop("a word that JSON does not have");
    ++c.p;
  }
  return Reading::whole;
}

Reading skip_number(TextCursor& c) {
  if (*c.p == '-') ++c.p;
  if (*c.p == 'I') return skip_word(c, "Infinity");
  if (const Reading r = skip_digits(c); r != Reading::whole) return r;
  if (*c.p == '.') {
    ++c.p;
    if (const Reading r = skip_digits(c); r != Reading::whole) return r;
  }
  if (*c.p == 'e' || *c.p == 'E') {
    ++c.p;
    if (*c.p == '+' || *c.p == '-') ++c.p;
    if (const Reading r = skip_digits(c); r != Reading::whole) return r;
  }
  return c.p == c.end ? Reading::cut : Reading::whole;
}

Reading skip_scalar(TextCursor& c) {
  switch (*c.p) {
    case '"':
      return skip_text(c);
    case 't':
      return skip_word(c, "true");
    case 'f':
      return skip_word(c, "false");
    case 'n':
      return skip_word(c, "null");
    case 'N':
      return skip_word(c, "NaN");
    case 'I':
      return skip_word(c, "Infinity");
    default:
      if (*c.p == '-' || is_digit(*c.p)) return skip_number(c);
      return c.stop("no value where one belongs");
  }
}

Reading skip_key(TextCursor& c) {
  c.skip_space();
  if (*c.p != '"') return c.stop("no name where one belongs");
  if (const Reading r = skip_text(c); r != Reading::whole) return r;
  c.skip_space();
  if (*c.p != ':') return c.stop("no colon after a name");
  ++c.p;
  return Reading::whole;
}

void put_utf8(std::string& out, unsigned code) {
  const auto put = [&](unsigned byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0U | (code >> 6));
    put(0x80U | (code & 0x3FU));
  } else if (code < 0x10000) {
    put(0xE0U | (code >> 12));
    put(0x80U | ((code >> 6) & 0x3FU));
    put(0x80U | (code & 0x3FU));
  } else {
    put(0xF0U | (code >> 18));
    put(0x80U | ((code >> 12) & 0x3FU));
    put(0x80U | ((code >> 6) & 0x3FU));
    put(0x80U | (code & 0x3FU));
  }
}

/// The four digits after "\u" at `at`; nothing where they are not there.
std::optional<unsigned> hex_at(std::string_view text, std::size_t at) {
  unsigned code = 0;
  if (at + 4 > text.size()) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + at + 4, code, 16);
  if (error != std::errc() || end != text.data() + at + 4) return std::nullopt;
  return code;
}

}  // namespace

Reading skip_text(TextCursor& c) {
  ++c.p;
  while (true) {
    while (is_plain(*c.p)) ++c.p;
    if (*c.p == '"') {
      ++c.p;
      return Reading::whole;
    }
    if (*c.p != '\\') return c.stop("a text without its closing quote");
    ++c.p;
    if (*c.p == 'u') {
      ++c.p;
      for (int i = 0; i < 4; ++i, ++c.p) {
        if (!is_hex(*c.p)) return c.stop("a wrong escape in a text");
      }
    } else if (*c.p != '\0' && std::strchr("\"\\/bfnrt", *c.p) != nullptr) {
      ++c.p;
    } else {
      return c.stop("a wrong escape in a text");
    }
  }
}

Reading skip_value(TextCursor& c) {
  std::uint64_t objects = 0;  // a bit for each open value: whether it is an object
  int depth = 0;
  bool want_value = true;
  while (true) {
    c.skip_space();
    if (want_value) {
      if (*c.p == '{' || *c.p == '[') {
        const bool object = *c.p == '{';
        if (++depth > kMaxDepth) return c.fail("values more than 64 deep");
        objects = (objects << 1) | (object ? 1U : 0U);
        ++c.p;
        c.skip_space();
        if (*c.p == (object ? '}' : ']')) {
          want_value = false;
        } else if (object) {
          if (const Reading r = skip_key(c); r != Reading::whole) return r;
        }
        continue;
      }
      if (const Reading r = skip_scalar(c); r != Reading::whole) return r;
      if (depth == 0) return Reading::whole;
      want_value = false;
      continue;
    }
    const bool object = (objects & 1) != 0;
    if (*c.p == ',') {
      ++c.p;
      if (object) {
        if (const Reading r = skip_key(c); r != Reading::whole) return r;
      }
      want_value = true;
    } else if (*c.p == (object ? '}' : ']')) {
      ++c.p;
      objects >>= 1;
      if (--depth == 0) return Reading::whole;
    } else {
      return c.stop("no comma after a value");
    }
  }
}

std::string_view without_quotes(std::string_view value) {
  return value.size() >= 2 && value.front() == '"' ? value.substr(1, value.size() - 2) : value;
}

Members::Members(std::string_view object) {
  const auto begin = object.find_first_not_of(" \n\r\t");
  if (begin == std::string_view::npos || object[begin] != '{') return;
  // The closing brace is the byte that ends every loop.
  const auto end = object.find_last_of('}');
  if (end != std::string_view::npos && end > begin) rest_ = object.substr(begin + 1, end - begin);
}

bool Members::next(std::string_view& key, std::string_view& value, bool& is_text) {
  if (rest_.empty()) return false;
  TextCursor c{.p = rest_.data(), .end = rest_.data() + rest_.size() - 1};
  c.skip_space();
  const char* key_begin = c.p + 1;
  if (*c.p != '"' || skip_text(c) != Reading::whole) {
    rest_ = {};
    return false;
  }
  key = {key_begin, static_cast<std::size_t>(c.p - key_begin - 1)};
  c.skip_space();
  if (*c.p == ':') ++c.p;
  c.skip_space();
  const char* value_begin = c.p;
  const bool scalar_text = *c.p == '"';
  const Reading read = skip_value(c);
  // A number right before the closing brace ends at the end of the text.
  if (read == Reading::broken || c.p > c.end || (read == Reading::cut && c.p == value_begin)) {
    rest_ = {};
    return false;
  }
  is_text = scalar_text;
  value = without_quotes({value_begin, static_cast<std::size_t>(c.p - value_begin)});
  c.skip_space();
  const bool more = *c.p == ',';
  rest_ =
      more ? rest_.substr(static_cast<std::size_t>(c.p + 1 - rest_.data())) : std::string_view();
  return true;
}

std::optional<std::string_view> find_argument(std::string_view object, std::string_view key) {
  Members members(object);
  std::string_view name;
  std::string_view value;
  while (members.next(name, value)) {
    if (name == key) return value;
  }
  return std::nullopt;
}

std::optional<std::int64_t> to_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> find_integer(std::string_view object, std::string_view key) {
  const auto text = find_argument(object, key);
  return text ? to_integer(*text) : std::nullopt;
}

std::string unescape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out.push_back(text[i]);
      continue;
    }
    const char kind = text[++i];
    constexpr std::string_view kLetters = "bfnrt";
    constexpr std::string_view kBytes = "\b\f\n\r\t";
    const auto letter = kLetters.find(kind);
    if (kind != 'u') {
      out.push_back(letter == std::string_view::npos ? kind : kBytes[letter]);
      continue;
    }
    const auto code = hex_at(text, i + 1);
    if (!code) continue;
    i += 4;
    unsigned point = *code;
    if (point >= 0xD800 && point < 0xE000) {
      const auto low =
          text.substr(i + 1).starts_with("\\u") ? hex_at(text, i + 3) : std::optional<unsigned>();
      if (point < 0xDC00 && low && *low >= 0xDC00 && *low < 0xE000) {
        point = 0x10000 + ((point - 0xD800) << 10) + (*low - 0xDC00);
        i += 6;
      } else {
        point = 0xFFFD;
      }
    }
    put_utf8(out, point);
  }
  return out;
}

std::optional<std::int64_t> microseconds_to_ns(std::string_view text) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  std::uint64_t digits = 0;
  int scale = 3;  // ns = digits x 10^scale
  bool any = false;
  bool fraction = false;
  std::size_t i = 0;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !fraction) {
      fraction = true;
      continue;
    }
    if (!is_digit(c)) break;
    any = true;
    if (digits > (kMax - 9) / 10) {  // a further digit counts only before the point
      if (!fraction) ++scale;
      continue;
    }
    digits = digits * 10 + static_cast<std::uint64_t>(c - '0');
    if (fraction) --scale;
  }
  if (!any) return std::nullopt;
  if (i < text.size()) {
    if (text[i] != 'e' && text[i] != 'E') return std::nullopt;
    const std::string_view exponent =
        text.substr(i + (text.substr(i + 1).starts_with('+') ? 2 : 1));
    const auto power = to_integer(exponent);
    if (!power || *power < -1000 || *power > 1000) return std::nullopt;
    scale += static_cast<int>(*power);
  }
  for (; scale > 0 && digits != 0; --scale) {
    if (digits > kMax / 10) return std::nullopt;
    digits *= 10;
  }
  for (; scale < -1 && digits != 0; ++scale) digits /= 10;
  if (scale < 0) digits = (digits + 5) / 10;
  const auto value = static_cast<std::int64_t>(digits);
  return negative ? -value : value;
}

}  // namespace dstrain::trace
