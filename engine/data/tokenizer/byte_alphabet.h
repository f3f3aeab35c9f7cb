#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dstrain {

/// The 256 printable characters that byte-level vocabularies write bytes with (GPT-2's
/// bytes_to_unicode): a byte that is printable in Latin-1 stands for itself, the others follow from
/// U+0100 on.
[[nodiscard]] char32_t character_of_byte(std::uint8_t byte);

/// The bytes of a token of the vocabulary; nothing when it holds a character that stands for no
/// byte.
[[nodiscard]] std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace dstrain
