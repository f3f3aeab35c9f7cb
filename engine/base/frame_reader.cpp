#include "engine/base/frame_reader.h"

#include <cstdint>

#include "engine/base/bytes.h"

namespace dstrain {
namespace {

/// A buffer that has held a large frame is not kept for small ones.
constexpr std::size_t kKeptBytes = std::size_t{256} << 10U;

}  // namespace

std::size_t FrameReader::payload_bytes() const {
  std::string_view bytes = std::string_view(buffer_).substr(begin_);
  std::uint32_t length = 0;
  (void)take_little_endian(bytes, length);
  return length;
}

FrameReader::State FrameReader::state() const {
  const std::size_t held = buffer_.size() - begin_;
  if (held < sizeof(std::uint32_t)) return State::incomplete;
  if (payload_bytes() > max_payload_bytes_) return State::too_long;
  return held < header_bytes_ + payload_bytes() ? State::incomplete : State::complete;
}

std::string_view FrameReader::header() const {
  if (buffer_.size() - begin_ < header_bytes_) return {};
  return std::string_view(buffer_).substr(begin_, header_bytes_);
}

std::string_view FrameReader::front() const {
  return std::string_view(buffer_).substr(begin_ + header_bytes_, payload_bytes());
}

void FrameReader::pop() { begin_ += header_bytes_ + payload_bytes(); }

void FrameReader::compact() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  if (buffer_.empty() && buffer_.capacity() > kKeptBytes) buffer_.shrink_to_fit();
}

}  // namespace dstrain
