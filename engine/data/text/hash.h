#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace dstrain::text {

/// XXH3 of bytes that come in parts. https://xxhash.com
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t hash64() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] std::uint64_t hash64(std::string_view text);
[[nodiscard]] std::uint64_t hash64(std::span<const std::byte> bytes);
/// 32 hexadecimal digits.
[[nodiscard]] std::string hash128(std::string_view text);

/// hash128() as a field in the header of a file of the cache: what the file was made from, whatever
/// it is called.
using KeyField = std::array<char, 32>;
/// Error{internal} for other than 32 digits.
[[nodiscard]] KeyField key_field(std::string_view hash128);

/// Why a file whose header begins with `magic` is not one of `wanted`, whose last byte counts the
/// versions of the format.
[[nodiscard]] const char* wrong_magic(std::uint64_t magic, std::uint64_t wanted);
inline constexpr const char* kOtherKey =
    "it was made from other files or with other settings, and has been renamed";

}  // namespace dstrain::text
