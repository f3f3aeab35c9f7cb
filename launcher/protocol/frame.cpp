#include "launcher/protocol/frame.h"

#include <fmt/format.h>

#include "engine/base/bytes.h"
#include "engine/base/error.h"

namespace dstrain::launcher {

std::size_t frame_bytes(std::string_view bytes) {
  std::uint32_t size = 0;
  (void)take_little_endian(bytes, size);
  return kFrameHeader + size;
}

std::string encode(FrameType type, std::string_view payload) {
  DSTRAIN_CHECK(payload.size() <= kFrameLimit, "frame too large");
  std::string bytes;
  bytes.reserve(kFrameHeader + payload.size());
  put_little_endian(bytes, static_cast<std::uint32_t>(payload.size()));
  bytes.push_back(static_cast<char>(type));
  return bytes.append(payload);
}

std::optional<Frame> FrameDecoder::next() {
  const std::string_view header = reader_.header();
  std::uint8_t type = 0;
  if (!header.empty()) {
    type = static_cast<std::uint8_t>(header.back());
    if (reader_.state() == FrameReader::State::too_long ||
        type < static_cast<std::uint8_t>(FrameType::hello) ||
        type > static_cast<std::uint8_t>(FrameType::reached)) {
      throw Error(ErrorKind::internal,
                  fmt::format("not a dstrain frame: type {}, {} bytes (limit {})", type,
                              frame_bytes(header) - kFrameHeader, kFrameLimit),
                  "something else wrote into the channel between controller and agent");
    }
  }
  if (reader_.state() != FrameReader::State::complete) {
    reader_.compact();
    return std::nullopt;
  }
  Frame frame{static_cast<FrameType>(type), std::string(reader_.front())};
  reader_.pop();
  return frame;
}

}  // namespace dstrain::launcher
