#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/frame_reader.h"

namespace dstrain::launcher {

/// Largest payload; a length above it ends the connection before anything is allocated.
inline constexpr std::uint32_t kFrameLimit = 8U << 20;

/// c: sent by the controller, a: by the agent. The order is hello (both), prepare, ready, start,
/// started..., then console, report, ended as they happen, done. Instead of prepare an agent may be
/// asked to inspect its host or to sweep it, and ends after its answer. Ping and pong come at any
/// time after the hello.
enum class FrameType : std::uint8_t {
  hello = 1,  ///< both
  prepare,    ///< c: PrepareJob
  ready,      ///< a: ReadyAgent
  start,      ///< c: StartRanks
  stop,       ///< c: StopKind
  started,    ///< a: StartedRank
  console,    ///< a: RankOutput
  report,     ///< a: one JSON line of rank 0's report pipe
  ended,      ///< a: RankEnd
  done,       ///< a: AgentDone
  fault,      ///< a: FaultMessage, then the agent ends
  ping,    ///< c: its clock in ns, every second; an agent without one for its lease ends its ranks
  pong,    ///< a: PongMessage
  stall,   ///< a: RankState of a rank that has stopped to make progress
  states,  ///< c: empty; the agent answers with one `state` for each rank, then `states_end`
  state,   ///< a: RankState with a stack
  states_end,  ///< a: empty
  sweep,       ///< c: run directory; the agent kills what an earlier agent of it left, answers done
  inspect,     ///< c: InspectHost
  inspection,  ///< a: JSON of launcher/doctor/inspect.h
  pace,        ///< a: PaceMessage, every few seconds while steps are made
  listening,   ///< a: ListeningAgent, before its inspection
  reach,       ///< c: ReachPeers
  reached,     ///< a: ReachedPeers
};

struct Frame {
  FrameType type = FrameType::hello;
  std::string payload;
};

/// Bytes on the wire: u32 payload length, u8 type, payload.
[[nodiscard]] std::string encode(FrameType type, std::string_view payload);

/// Length of the payload and type, before every payload.
inline constexpr std::size_t kFrameHeader = 5;
/// Size of the frame, header included, that a stream of at least a header begins with.
[[nodiscard]] std::size_t frame_bytes(std::string_view bytes);

/// Cuts a byte stream back into frames. Error{internal} on a length above kFrameLimit or an unknown
/// type.
class FrameDecoder {
 public:
  void append(std::string_view bytes) { reader_.append(bytes); }
  [[nodiscard]] std::optional<Frame> next();

 private:
  FrameReader reader_{kFrameHeader, kFrameLimit};
};

}  // namespace dstrain::launcher
