#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dstrain {

/// Cuts a byte stream into frames: a header that begins with the length of the payload (32 bits,
/// little-endian), then the payload.
class FrameReader {
 public:
  enum class State { incomplete, complete, too_long };

  /// `header_bytes`: at least the length's four.
  FrameReader(std::size_t header_bytes, std::size_t max_payload_bytes)
      : header_bytes_(header_bytes), max_payload_bytes_(max_payload_bytes) {}

  void append(std::string_view bytes) { buffer_.append(bytes); }
  /// State of the first frame; `too_long` as soon as its length has come.
  [[nodiscard]] State state() const;
  /// Header of the first frame; empty until it has come. Valid until the next call.
  [[nodiscard]] std::string_view header() const;
  /// Payload of the first frame, once complete. Valid until the next call.
  [[nodiscard]] std::string_view front() const;
  void pop();
  /// After the last pop() of a batch: gives back what was read.
  void compact();

 private:
  [[nodiscard]] std::size_t payload_bytes() const;

  std::size_t header_bytes_;
  std::size_t max_payload_bytes_;
  std::string buffer_;
  std::size_t begin_ = 0;
};

}  // namespace dstrain
