#include "engine/base/printable.h"

#include <array>
#include <string>

#include "test/support/catch.h"

using namespace dstrain;

namespace {

/// RFC 3629, sec. 3.
std::string utf8(char32_t point) {
  const auto tail = [point](unsigned shift) {
    return static_cast<char>(0x80 | ((point >> shift) & 0x3F));
  };
  if (point < 0x80) return {static_cast<char>(point)};
  if (point < 0x800) return {static_cast<char>(0xC0 | (point >> 6)), tail(0)};
  if (point < 0x10000) return {static_cast<char>(0xE0 | (point >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | (point >> 18)), tail(12), tail(6), tail(0)};
}

}  // namespace

TEST_CASE("text without controls is printed as it is", "[base][printable]") {
  for (const std::string text : {"", "plain\ttext\n", "caf\u00e9 \u20ac \U0001F600 \u0627\u200f"}) {
    CHECK(printable(text) == text);
    CHECK(first_unprintable(text).empty());
  }
  CHECK(is_plain_text("caf\u00e9"));
  CHECK_FALSE(is_plain_text("a\tb"));
  CHECK_FALSE(is_plain_text("a\nb"));
}

TEST_CASE("every control, as UTF-8 or as a raw byte, is written out", "[base][printable]") {
  for (char32_t point = 0; point < 0x20; ++point) {
    if (point == '\n' || point == '\t') continue;
    CAPTURE(point);
    CHECK(printable(utf8(point)).starts_with("\\x"));
    CHECK_FALSE(is_plain_text(utf8(point)));
  }
  for (char32_t point = 0x7F; point < 0xA0; ++point) {
    CAPTURE(point);
    CHECK(printable(utf8(point)).starts_with("\\u00"));
    CHECK_FALSE(is_plain_text(utf8(point)));
  }
  for (int byte = 0x80; byte < 0x100; ++byte) {
    CAPTURE(byte);
    CHECK(printable(std::string(1, static_cast<char>(byte))).starts_with("\\x"));
  }
  CHECK(printable("a\x1b[2J\r\xFF") == "a\\x1b[2J\\x0d\\xff");
  CHECK(printable(utf8(0x9B) + "2J") == "\\u009b2J");
  CHECK(first_unprintable("ab" + utf8(0x9B) + "c") == utf8(0x9B));
}

TEST_CASE("marks that turn the direction of text are written out", "[base][printable]") {
  for (const char32_t point : {0x2028, 0x2029, 0x202A, 0x202E, 0x2066, 0x2069}) {
    CAPTURE(point);
    CHECK(printable(utf8(point)).starts_with("\\u20"));
  }
  CHECK(printable("admin" + utf8(0x202E) + "gpj.exe") == "admin\\u202egpj.exe");
}

TEST_CASE("JSON keeps its meaning", "[base][printable]") {
  CHECK(printable("{\n  \"a\": \"" + utf8(0x7F) + utf8(0x9B) + "\"\n}") ==
        "{\n  \"a\": \"\\u007f\\u009b\"\n}");
}

TEST_CASE("a part of a message stays on one line and is cut", "[base][printable]") {
  CHECK(shown("a\x1b[2J\n\xFF") == "a\\x1b[2J\\x0a\\xff");
  CHECK(shown("caf\u00e9") == "caf\u00e9");
  CHECK(shown(std::string(1000, 'x')) == std::string(60, 'x') + "...");
}

TEST_CASE("UTF-8 is checked as RFC 3629 says", "[base][printable]") {
  for (const char* good :
       {"", "a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF"}) {
    CHECK(first_invalid_utf8(good) == std::string_view::npos);
  }
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC3", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5"}) {
    CHECK(first_invalid_utf8(bad) == 0);
  }
}
