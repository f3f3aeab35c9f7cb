#include "launcher/protocol/protocol.h"

#include <fmt/format.h>

#include "engine/base/error.h"

namespace dstrain::launcher {

template <>
Hello unpack<Hello>(const Frame& frame) {
  WireReader reader(frame.payload);
  if (frame.type != FrameType::hello || reader.text() != kProgram) {
    throw Error(ErrorKind::hosts, "the other side of the channel is not dstrain");
  }
  Hello m;
  m.version = reader.number();
  // Fields after the version may differ between versions: read them only when it is ours.
  if (m.version != kProtocolVersion) {
    throw Error(ErrorKind::hosts,
                fmt::format("the other side speaks protocol version {}, this build speaks {}",
                            m.version, kProtocolVersion),
                "install the same version of dstrain everywhere");
  }
  m.build = reader.text();
  m.host = reader.text();
  m.address = reader.text();
  m.peer_address = reader.text();
  reader.end();
  return m;
}

}  // namespace dstrain::launcher
