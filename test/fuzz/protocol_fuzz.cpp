#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "launcher/protocol/protocol.h"

namespace {

using namespace dstrain;
using namespace dstrain::launcher;

void require(bool condition) {
  if (!condition) std::abort();
}

/// The frames of a stream that arrives in pieces of `piece` bytes, up to the first error.
std::vector<Frame> decode(std::string_view stream, std::size_t piece) {
  std::vector<Frame> frames;
  FrameDecoder decoder;
  try {
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      decoder.append(stream.substr(at, piece));
      while (auto frame = decoder.next()) frames.push_back(std::move(*frame));
    }
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::internal);
  }
  return frames;
}

/// What was understood, when it is sent on, is understood as the same.
template <class Unpack, class Pack>
void check_message(const Frame& frame, const Unpack& unpack, const Pack& pack_it) {
  const std::string sent = pack_it(unpack(frame));
  require(pack_it(unpack(Frame{frame.type, sent})) == sent);
}

template <class Unpack>
void check_message(const Frame& frame, const Unpack& unpack) {
  check_message(frame, unpack, [](const auto& message) { return pack(message); });
}

void unpack_frame(const Frame& frame) {
  using enum FrameType;
  switch (frame.type) {
    case hello:
      return check_message(frame, unpack_hello);
    case prepare:
      return check_message(frame, unpack_prepare);
    case ready:
      return check_message(frame, unpack_ready);
    case start:
      return check_message(frame, unpack_start);
    case stop:
      return check_message(frame, unpack_stop);
    case started:
      return check_message(frame, unpack_started);
    case console:
      return check_message(frame, unpack_console);
    case ended:
      return check_message(frame, unpack_ended);
    case done:
      return check_message(frame, unpack_done);
    case fault:
      return check_message(frame, unpack_fault);
    case ping:
      return check_message(frame, unpack_ping, pack_ping);
    case pong:
      return check_message(frame, unpack_pong);
    case stall:
    case state:
      return check_message(frame, unpack_state);
    case inspect:
      return check_message(frame, unpack_inspect);
    case pace:
      return check_message(frame, unpack_pace);
    case tree:
      return check_message(frame, unpack_tree);
    case tree_problem:
      return check_message(frame, unpack_tree_problem);
    case listening:
      return check_message(frame, unpack_listening);
    case reach:
      return check_message(frame, unpack_reach);
    case reached:
      return check_message(frame, unpack_reached);
    case report:  // these are text, or empty
    case states:
    case states_end:
    case sweep:
    case inspection:
      return;
  }
  std::abort();  // the decoder let an unknown type through
}

}  // namespace

/// The size of the pieces, then a stream. Any bytes are refused with an Error or give frames that
/// do not depend on how the stream was cut, are a part of it, and hold a message or an Error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::vector<Frame> frames = decode(stream, std::max<std::size_t>(1, stream.size()));
  const std::vector<Frame> again = decode(stream, 1U + data[0]);
  require(frames.size() == again.size());
  std::string encoded;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    require(frames[i].type == again[i].type && frames[i].payload == again[i].payload);
    encoded += encode(frames[i].type, frames[i].payload);
    try {
      unpack_frame(frames[i]);
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::internal || error.kind() == ErrorKind::hosts);
    }
  }
  require(stream.starts_with(encoded));
  return 0;
}
