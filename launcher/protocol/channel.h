#pragma once

#include <optional>
#include <string>

#include "launcher/base/fd.h"
#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {

/// One end of the connection between controller and agent: any pair of byte-stream descriptors
/// (socketpair here, the stdio of ssh or a TCP connection elsewhere). Never blocks: what cannot be
/// written yet waits in a buffer.
class Channel {
 public:
  Channel(UniqueFd in, UniqueFd out);

  /// Takes in what has arrived; false once the other side has closed.
  [[nodiscard]] bool receive();
  [[nodiscard]] std::optional<Frame> next() { return decoder_.next(); }

  void send(const Message auto& message) { send_frame(encode(message)); }
  void flush();
  [[nodiscard]] bool wants_write() const { return !pending_.empty(); }
  /// Bytes that wait because the other side does not read; the caller drops what may be dropped
  /// above its limit.
  [[nodiscard]] std::size_t pending_bytes() const { return pending_.size(); }

  [[nodiscard]] int in() const { return in_.get(); }
  [[nodiscard]] int out() const { return out_.get(); }

 private:
  void send_frame(std::string_view frame);

  UniqueFd in_;
  UniqueFd out_;
  FrameDecoder decoder_;
  std::string pending_;
  bool broken_ = false;
};

}  // namespace dstrain::launcher
