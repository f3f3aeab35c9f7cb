#pragma once

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

}  // namespace dstrain::text
