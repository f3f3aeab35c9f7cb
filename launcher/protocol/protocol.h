#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "launcher/base/hang_limit.h"
#include "launcher/base/tee.h"
#include "launcher/protocol/frame.h"
#include "launcher/protocol/wire.h"

namespace dstrain::launcher {

/// Version of the messages below; controller and agent must agree, the hello says which each
/// speaks.
inline constexpr std::int64_t kProtocolVersion = 8;
/// First word of a hello.
inline constexpr std::string_view kProgram = "dstrain";

// Each message names the type of its frame and, in fields(), its fields in the order in which they
// travel: a new message is a FrameType and a struct.

struct Hello {
  static constexpr FrameType kType = FrameType::hello;
  std::string program{kProgram};
  std::int64_t version = kProtocolVersion;
  std::string build;              ///< program and its version
  std::string host = {};          ///< a: its kernel's name for itself
  std::string address = {};       ///< a: its address on the connection to the controller, or empty
  std::string peer_address = {};  ///< a: the controller's address on it, or empty

  static auto fields(auto& m) {
    return std::tie(m.program, m.version, m.build, m.host, m.address, m.peer_address);
  }
};

/// As the first word of a rank's command: the agent's own program, wherever it was copied to.
inline constexpr const char* kAgentProgram = "@dstrain";

/// What one agent needs to run its part of the job.
struct PrepareJob {
  static constexpr FrameType kType = FrameType::prepare;
  std::string run_directory;         ///< absolute
  std::string working_directory;     ///< absolute
  std::vector<std::string> command;  ///< program of a rank and its arguments
  /// NAME=VALUE for every rank, beside the agent's own environment.
  std::vector<std::string> environment;
  std::string host;  ///< name that reports use for this node
  int first_rank = 0;
  int num_ranks = 0;
  int world_size = 0;
  int cores = 1;  ///< of this node, shared by its ranks
  /// The agent of rank 0 binds this address for the rendezvous; empty on the others.
  std::string rendezvous_address;
  int attempt = 0;          ///< counts the starts of this job, from 0
  std::string secret = {};  ///< 32 bytes, for the rendezvous (engine/base/handshake.h)
  int lease_ms = 0;         ///< end the ranks after so long without a ping; 0: never
  HangLimit hang_limit = {};
  /// A file of the run directory that must be seen here, or the directory is not shared.
  std::string token = {};
  std::string peer_address = {};  ///< of another node, to choose the network interface by; or empty
  Tee tee = {};

  static auto fields(auto& m) {
    return std::tie(m.run_directory, m.working_directory, m.command, m.environment, m.host,
                    m.first_rank, m.num_ranks, m.world_size, m.cores, m.rendezvous_address,
                    m.attempt, m.secret, m.lease_ms, m.hang_limit, m.token, m.peer_address, m.tee);
  }
};

struct ReadyAgent {
  static constexpr FrameType kType = FrameType::ready;
  int port = 0;  ///< of the rendezvous; 0 when this agent does not hold it

  static auto fields(auto& m) { return std::tie(m.port); }
};

struct StartRanks {
  static constexpr FrameType kType = FrameType::start;
  std::string master_address;
  int master_port = 0;

  static auto fields(auto& m) { return std::tie(m.master_address, m.master_port); }
};

enum class StopKind : std::uint8_t {
  finish,     ///< finish the step, save, end
  end,        ///< end now
  elsewhere,  ///< a rank of another node failed: as if one of this node had
};
/// For a reader, to which any number may come.
constexpr StopKind largest(StopKind /*type*/) { return StopKind::elsewhere; }

struct StopRanks {
  static constexpr FrameType kType = FrameType::stop;
  StopKind kind = StopKind::end;

  static auto fields(auto& m) { return std::tie(m.kind); }
};

struct Ping {
  static constexpr FrameType kType = FrameType::ping;
  std::int64_t clock_ns = 0;  ///< of the controller

  static auto fields(auto& m) { return std::tie(m.clock_ns); }
};

struct Pong {
  static constexpr FrameType kType = FrameType::pong;
  std::int64_t ping_ns = 0;     ///< of the ping that it answers
  std::int64_t clock_ns = 0;    ///< CLOCK_REALTIME of the agent
  bool stop_signalled = false;  ///< the agent itself received SIGTERM, SIGINT or SIGUSR1
  int signal = 0;               ///< which

  static auto fields(auto& m) {
    return std::tie(m.ping_ns, m.clock_ns, m.stop_signalled, m.signal);
  }
};

/// Where a rank stands, for the report of a hang.
struct RankState {
  static constexpr FrameType kType = FrameType::state;
  int rank = 0;
  std::string host;
  std::int64_t pid = 0;
  std::int64_t step = -1;
  std::string action;
  std::string section = {};  ///< name_of() of RankSection
  std::int64_t progress = 0;
  std::int64_t stalled_ns = 0;   ///< since its last progress
  std::int64_t limit_ns = 0;     ///< how long it may stall in this section; 0: for ever
  std::int64_t collectives = 0;  ///< how many it has entered
  bool in_collective = false;    ///< has entered the last of them and not left it
  std::string collective;        ///< "all_reduce, 4 ranks, 1.5 MiB": the last one
  std::string stack;         ///< one frame per line, innermost first; of every thread that matters
  char process_state = '?';  ///< of /proc/PID/stat: R, S, D, T, ...; X: the rank has ended

  static auto fields(auto& m) {
    return std::tie(m.rank, m.host, m.pid, m.step, m.action, m.section, m.progress, m.stalled_ns,
                    m.limit_ns, m.collectives, m.in_collective, m.collective, m.stack,
                    m.process_state);
  }
};

struct StalledRank {
  static constexpr FrameType kType = FrameType::stall;
  RankState state;

  static auto fields(auto& m) { return std::tie(m.state); }
};

/// Asks for the state of every rank, each with its stack; `StatesEnd` follows the last one.
struct AskStates {
  static constexpr FrameType kType = FrameType::states;

  static auto fields(auto& /*m*/) { return std::tie(); }
};
struct StatesEnd {
  static constexpr FrameType kType = FrameType::states_end;

  static auto fields(auto& /*m*/) { return std::tie(); }
};

/// Training steps of one rank since its start (engine/base/rank_record.h).
struct RankPace {
  int rank = 0;
  int stage = 0;  ///< of a pipeline; ranks of one stage have equal work
  std::int64_t steps = 0;
  std::int64_t steps_ns = 0;   ///< time in them
  std::int64_t waited_ns = 0;  ///< of it, waiting for other ranks or the device

  static auto fields(auto& m) {
    return std::tie(m.rank, m.stage, m.steps, m.steps_ns, m.waited_ns);
  }
};

/// Paces of the running ranks of one node.
struct PaceMessage {
  static constexpr FrameType kType = FrameType::pace;
  std::vector<RankPace> ranks;

  static auto fields(auto& m) { return std::tie(m.ranks); }
};

/// The agent kills what an earlier agent of this job left and answers AgentDone.
struct SweepRun {
  static constexpr FrameType kType = FrameType::sweep;
  std::string run_directory;

  static auto fields(auto& m) { return std::tie(m.run_directory); }
};

/// `dstrain doctor` on another host.
struct InspectHost {
  static constexpr FrameType kType = FrameType::inspect;
  std::string working_directory;
  std::string peer_address;
  bool listen = false;  ///< for the connections of its peers, until the agent ends

  static auto fields(auto& m) { return std::tie(m.working_directory, m.peer_address, m.listen); }
};

struct InspectionAnswer {
  static constexpr FrameType kType = FrameType::inspection;
  std::string json;  ///< of launcher/doctor/inspect.h

  static auto fields(auto& m) { return std::tie(m.json); }
};

/// Where the other agents can try to connect to this one.
struct ListeningAgent {
  static constexpr FrameType kType = FrameType::listening;
  int port = 0;              ///< 0: nowhere
  std::string address;       ///< as in Hello
  std::string peer_address;  ///< as in Hello

  static auto fields(auto& m) { return std::tie(m.port, m.address, m.peer_address); }
};

struct Peer {
  int node = 0;
  std::string address;  ///< numeric
  int port = 0;

  static auto fields(auto& m) { return std::tie(m.node, m.address, m.port); }
};
/// Peers that the agent should try to reach.
struct ReachPeers {
  static constexpr FrameType kType = FrameType::reach;
  std::vector<Peer> peers;

  static auto fields(auto& m) { return std::tie(m.peers); }
};

struct PeerProblem {
  int node = 0;
  std::string kind;  ///< "refused", "timeout", "no route", or the system's words

  static auto fields(auto& m) { return std::tie(m.node, m.kind); }
};
/// Peers that it has not reached.
struct ReachedPeers {
  static constexpr FrameType kType = FrameType::reached;
  std::vector<PeerProblem> problems;

  static auto fields(auto& m) { return std::tie(m.problems); }
};

struct StartedRank {
  static constexpr FrameType kType = FrameType::started;
  int rank = 0;
  std::int64_t pid = 0;

  static auto fields(auto& m) { return std::tie(m.rank, m.pid); }
};

struct RankOutput {
  static constexpr FrameType kType = FrameType::console;
  int rank = 0;
  std::string lines;  ///< whole lines, each with its newline

  static auto fields(auto& m) { return std::tie(m.rank, m.lines); }
};

/// One JSON line of rank 0's report pipe, without its newline.
struct ReportLine {
  static constexpr FrameType kType = FrameType::report;
  std::string text;

  static auto fields(auto& m) { return std::tie(m.text); }
};

/// How one rank ended and what it had been doing.
struct RankEnd {
  static constexpr FrameType kType = FrameType::ended;
  int rank = 0;
  std::string host;
  std::int64_t pid = 0;
  int exit_code = 0;  ///< valid when `signal` is 0
  int signal = 0;
  std::int64_t time_ns = 0;  ///< CLOCK_REALTIME when the agent saw the end
  /// When the agent began to end all ranks; 0: this rank ended before.
  std::int64_t stop_time_ns = 0;
  bool finish_asked = false;            ///< SIGTERM had been sent as a request
  bool out_of_memory = false;           ///< the kernel's counter of kills for memory grew
  std::int64_t memory_limit_bytes = 0;  ///< with `out_of_memory`: of the control group; 0: unknown
  std::int64_t step = -1;
  std::string action;
  std::string error;  ///< first line of the error that the rank recorded, or empty
  int error_code = 0;
  std::int64_t error_time_ns = 0;
  std::string collective = {};          ///< the last collective, as in RankState
  std::vector<std::string> last_lines;  ///< of its log

  static auto fields(auto& m) {
    return std::tie(m.rank, m.host, m.pid, m.exit_code, m.signal, m.time_ns, m.stop_time_ns,
                    m.finish_asked, m.out_of_memory, m.memory_limit_bytes, m.step, m.action,
                    m.error, m.error_code, m.error_time_ns, m.collective, m.last_lines);
  }
};

struct AgentDone {
  static constexpr FrameType kType = FrameType::done;
  int num_leftovers = 0;  ///< processes of the job beside the ranks that had to be killed
  std::vector<std::string> unkillable;  ///< "pid (name, state)" of what outlived SIGKILL

  static auto fields(auto& m) { return std::tie(m.num_leftovers, m.unkillable); }
};

struct FaultMessage {
  static constexpr FrameType kType = FrameType::fault;
  int exit_code = 70;
  std::string message;
  std::string hint;

  static auto fields(auto& m) { return std::tie(m.exit_code, m.message, m.hint); }
};

/// What one frame carries.
template <class M>
concept Message = std::same_as<std::remove_cv_t<decltype(M::kType)>, FrameType> && HasFields<M>;

/// The message as a whole frame.
template <Message M>
[[nodiscard]] std::string encode(const M& message) {
  WireWriter writer;
  put(writer, message);
  return encode(M::kType, writer.take());
}

/// Error{internal} for a frame of another type and for a payload that no encode() wrote.
template <Message M>
[[nodiscard]] M unpack(const Frame& frame) {
  if (frame.type != M::kType) fail_malformed();
  WireReader reader(frame.payload);
  M message;
  get(reader, message);
  reader.end();
  return message;
}
/// Error{hosts} when the other side is no dstrain or speaks another version.
template <>
[[nodiscard]] Hello unpack<Hello>(const Frame& frame);

}  // namespace dstrain::launcher
