#pragma once

#include <cstdint>
#include <string_view>

namespace dstrain {

/// FNV-1a, 64 bits: the same on every machine, unlike std::hash.
[[nodiscard]] constexpr std::uint64_t stable_hash(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3ull;
  }
  return hash;
}

}  // namespace dstrain
