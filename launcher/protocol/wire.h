#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::launcher {

/// Fields of one frame's payload in order: little-endian integers, texts with a length before them.
/// Texts are bytes, so that paths, arguments and environment arrive as they were.
class WireWriter {
 public:
  WireWriter& number(std::int64_t value);
  WireWriter& text(std::string_view value);
  WireWriter& texts(const std::vector<std::string>& values);
  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what WireWriter wrote; Error{internal} on a payload that is too short, too long or names
/// an impossible count.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}
  [[nodiscard]] std::int64_t number();
  [[nodiscard]] int integer();
  [[nodiscard]] std::string text();
  [[nodiscard]] std::vector<std::string> texts();
  /// Every payload must be read to its last byte.
  void end() const;

 private:
  std::string_view take(std::uint64_t size);
  std::string_view bytes_;
};

}  // namespace dstrain::launcher
