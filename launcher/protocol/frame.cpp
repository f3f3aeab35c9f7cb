#include "launcher/protocol/frame.h"

#include <fmt/format.h>

#include "engine/base/error.h"

namespace dstrain::launcher {

std::size_t frame_bytes(std::string_view bytes) {
  std::uint32_t size = 0;
  for (std::size_t i = 0; i < 4; ++i)
    size |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return kFrameHeader + size;
}

std::string encode(FrameType type, std::string_view payload) {
  DSTRAIN_CHECK(payload.size() <= kFrameLimit, "frame too large");
  std::string bytes;
  bytes.reserve(kFrameHeader + payload.size());
  auto size = static_cast<std::uint32_t>(payload.size());
  for (int i = 0; i < 4; ++i, size >>= 8) bytes.push_back(static_cast<char>(size & 0xff));
  bytes.push_back(static_cast<char>(type));
  return bytes.append(payload);
}

std::optional<Frame> FrameDecoder::next() {
  const std::string_view rest = std::string_view(buffer_).substr(position_);
  const auto wait = [this] {  // for more bytes, without those that were read
    buffer_.erase(0, position_);
    position_ = 0;
    return std::nullopt;
  };
  if (rest.size() < kFrameHeader) return wait();
  const std::size_t size = frame_bytes(rest) - kFrameHeader;
  const auto type = static_cast<std::uint8_t>(rest[4]);
  if (size > kFrameLimit || type < static_cast<std::uint8_t>(FrameType::hello) ||
      type > static_cast<std::uint8_t>(FrameType::reached)) {
    throw Error(
        ErrorKind::internal,
        fmt::format("not a dstrain frame: type {}, {} bytes (limit {})", type, size, kFrameLimit),
        "something else wrote into the channel between controller and agent");
  }
  if (rest.size() < kFrameHeader + size) return wait();
  Frame frame{static_cast<FrameType>(type), std::string(rest.substr(kFrameHeader, size))};
  position_ += kFrameHeader + size;
  if (position_ == buffer_.size()) {
    buffer_.clear();
    position_ = 0;
  }
  return frame;
}

}  // namespace dstrain::launcher
