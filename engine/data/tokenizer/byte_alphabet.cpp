#include "engine/data/tokenizer/byte_alphabet.h"

#include <array>

#include "engine/data/tokenizer/utf8.h"

namespace dstrain {

namespace {

constexpr int kCharacters = 0x100 + 68;  // 68 bytes do not stand for themselves

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<std::int16_t, kCharacters> byte{};  ///< -1 where a character stands for none
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    const char32_t character = itself ? byte : next++;
    alphabet.character[byte] = character;
    alphabet.byte[character] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t character_of_byte(std::uint8_t byte) { return kAlphabet.character[byte]; }

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t at = 0; at < token.size();) {
    const CodePoint point = code_point_at(token, at);
    if (!point.valid || point.value >= kCharacters || kAlphabet.byte[point.value] < 0) return {};
    bytes.push_back(static_cast<char>(kAlphabet.byte[point.value]));
    at += point.length;
  }
  return bytes;
}

}  // namespace dstrain
