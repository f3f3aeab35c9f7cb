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
template <Message M>
void check_message(const Frame& frame) {
  const std::string sent = encode(unpack<M>(frame));
  const std::string payload = sent.substr(kFrameHeader);
  require(encode(unpack<M>(Frame{frame.type, payload})) == sent);
}

void unpack_frame(const Frame& frame) {
  using enum FrameType;
  switch (frame.type) {
    case hello:
      return check_message<Hello>(frame);
    case prepare:
      return check_message<PrepareJob>(frame);
    case ready:
      return check_message<ReadyAgent>(frame);
    case start:
      return check_message<StartRanks>(frame);
    case stop:
      return check_message<StopRanks>(frame);
    case started:
      return check_message<StartedRank>(frame);
    case console:
      return check_message<RankOutput>(frame);
    case report:
      return check_message<ReportLine>(frame);
    case ended:
      return check_message<RankEnd>(frame);
    case done:
      return check_message<AgentDone>(frame);
    case fault:
      return check_message<FaultMessage>(frame);
    case ping:
      return check_message<Ping>(frame);
    case pong:
      return check_message<Pong>(frame);
    case stall:
      return check_message<StalledRank>(frame);
    case states:
      return check_message<AskStates>(frame);
    case state:
      return check_message<RankState>(frame);
    case states_end:
      return check_message<StatesEnd>(frame);
    case sweep:
      return check_message<SweepRun>(frame);
    case inspect:
      return check_message<InspectHost>(frame);
    case inspection:
      return check_message<InspectionAnswer>(frame);
    case pace:
      return check_message<PaceMessage>(frame);
    case listening:
      return check_message<ListeningAgent>(frame);
    case reach:
      return check_message<ReachPeers>(frame);
    case reached:
      return check_message<ReachedPeers>(frame);
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
