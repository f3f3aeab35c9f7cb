#include "engine/base/printable.h"

#include <fmt/format.h>

namespace dstrain {
namespace {

/// Bytes of the UTF-8 sequence that starts at `text[at]`; 0 when there is no valid one (RFC 3629,
/// sec. 4).
std::size_t sequence_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) > 0x9F;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool beyond = first == 0xF4 && byte(1) > 0x8F;
    return follows(1) && follows(2) && follows(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

/// Character of a valid sequence.
char32_t code_point(std::string_view sequence) {
  constexpr unsigned kFirstBits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  char32_t point = static_cast<unsigned char>(sequence[0]) & kFirstBits[sequence.size()];
  for (const char next : sequence.substr(1)) {
    point = point << 6U | (static_cast<unsigned char>(next) & 0x3FU);
  }
  return point;
}

/// Controls (C0, DEL, C1), line and paragraph separators, and what overrides or isolates the
/// direction of text (Unicode TR 9, sec. 2; "Trojan Source", CVE-2021-42574).
bool misleads(char32_t point) {
  return point < 0x20 || (point >= 0x7F && point < 0xA0) || (point >= 0x2028 && point <= 0x202E) ||
         (point >= 0x2066 && point <= 0x2069);
}

/// One character or broken byte of a text.
struct Piece {
  std::string_view bytes;
  bool valid = false;
  char32_t point = 0;
  [[nodiscard]] bool is_safe() const { return valid && !misleads(point); }
};

Piece piece_at(std::string_view text, std::size_t at) {
  const std::size_t length = sequence_length(text, at);
  if (length == 0) return {.bytes = text.substr(at, 1)};
  const std::string_view bytes = text.substr(at, length);
  return {.bytes = bytes, .valid = true, .point = code_point(bytes)};
}

void append_shown(std::string& result, const Piece& piece) {
  if (piece.is_safe()) {
    result += piece.bytes;
  } else if (piece.valid && piece.point >= 0x7F) {
    result += fmt::format("\\u{:04x}", static_cast<unsigned>(piece.point));
  } else {
    result += fmt::format("\\x{:02x}", static_cast<unsigned char>(piece.bytes[0]));
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Piece piece = piece_at(text, at);
    if (piece.bytes == "\n" || piece.bytes == "\t") {
      result += piece.bytes;
    } else {
      append_shown(result, piece);
    }
    at += piece.bytes.size();
  }
  return result;
}

std::string shown(std::string_view text, std::size_t max_bytes) {
  std::string result;
  std::size_t at = 0;
  while (at < text.size() && result.size() < max_bytes) {
    const Piece piece = piece_at(text, at);
    append_shown(result, piece);
    at += piece.bytes.size();
  }
  return at < text.size() ? result + "..." : result;
}

std::size_t first_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Piece piece = piece_at(text, at);
    if (!piece.valid) return at;
    at += piece.bytes.size();
  }
  return std::string_view::npos;
}

std::string_view first_unprintable(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Piece piece = piece_at(text, at);
    if (!piece.is_safe() && piece.bytes != "\n" && piece.bytes != "\t") return piece.bytes;
    at += piece.bytes.size();
  }
  return {};
}

bool is_plain_text(std::string_view text) {
  return first_unprintable(text).empty() && text.find_first_of("\n\t") == std::string_view::npos;
}

}  // namespace dstrain
