#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dstrain {

/// Appends `value` to `to`, little-endian.
template <std::integral Integer>
void put_little_endian(std::string& to, Integer value) {
  auto bits = static_cast<std::uint64_t>(value);
  for (std::size_t i = 0; i < sizeof value; ++i, bits >>= 8U)
    to.push_back(static_cast<char>(bits & 0xffU));
}

/// Takes a little-endian `value` off the front of `from`; false when it is too short.
template <std::integral Integer>
[[nodiscard]] bool take_little_endian(std::string_view& from, Integer& value) {
  if (from.size() < sizeof value) return false;
  std::uint64_t bits = 0;
  for (std::size_t i = sizeof value; i-- > 0;)
    bits = (bits << 8U) | static_cast<std::uint8_t>(from[i]);
  value = static_cast<Integer>(bits);
  from.remove_prefix(sizeof value);
  return true;
}

}  // namespace dstrain
