#include "engine/data/tokenizer/utf8.h"

#include <cstdint>
#include <cstring>

namespace dstrain {

namespace {

/// Bytes at the start of `text` from `at` on that are ASCII, eight at a time.
std::size_t skip_ascii(std::string_view text, std::size_t at) {
  while (at + 8 <= text.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080u) != 0) break;
    at += 8;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(at);
  if (lead < 0x80) return {.value = lead, .length = 1, .valid = true};
  if (lead < 0xc2 || lead > 0xf4) return {};
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
  unsigned min = 0x80, max = 0xbf;
  if (lead == 0xe0) min = 0xa0;
  if (lead == 0xed) max = 0x9f;
  if (lead == 0xf0) min = 0x90;
  if (lead == 0xf4) max = 0x8f;
  char32_t value = lead & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (at + i >= text.size() || byte(at + i) < min || byte(at + i) > max) {
      return {.value = kReplacementCharacter, .length = i, .valid = false};
    }
    value = (value << 6) | (byte(at + i) & 0x3fu);
    min = 0x80;
    max = 0xbf;
  }
  return {.value = value, .length = length, .valid = true};
}

std::size_t start_of_last(std::string_view text, std::size_t end) {
  std::size_t at = end - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = skip_ascii(text, 0); at < text.size(); at = skip_ascii(text, at)) {
    const CodePoint point = code_point_at(text, at);
    if (!point.valid) return false;
    at += point.length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (point.valid) {
      result.append(text, at, point.length);
    } else {
      append_utf8(result, kReplacementCharacter);
    }
    at += point.length;
  }
  return result;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto add = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xc0 | code_point >> 6);
    add(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    add(0xe0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3f));
    add(0x80 | (code_point & 0x3f));
  } else {
    add(0xf0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3f));
    add(0x80 | (code_point >> 6 & 0x3f));
    add(0x80 | (code_point & 0x3f));
  }
}

}  // namespace dstrain
