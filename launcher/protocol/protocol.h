#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::launcher {

/// Version of the frames below; controller and agent must agree, the hello says which each speaks.
inline constexpr std::int64_t kProtocolVersion = 4;
/// Largest payload; a length above it ends the connection before anything is allocated.
inline constexpr std::uint32_t kFrameLimit = 8U << 20;

/// c: sent by the controller, a: by the agent. The order is hello (both), prepare, ready, start,
/// started..., then console, report, ended as they happen, done. Instead of prepare an agent may be
/// asked to inspect its host or to sweep it, and ends after its answer. Ping and pong come at any
/// time after the hello.
enum class FrameType : std::uint8_t {
  hello = 1,  ///< both: name, protocol version, build
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
  tree,        ///< c: TreeOrder, before the hello of `dstrain agent --tree`
  tree_problem,  ///< a: TreeProblem, before its hello
  listening,     ///< a: ListeningAgent, before its inspection
  reach,         ///< c: ReachPeers
  reached,       ///< a: ReachedPeers
};

struct Frame {
  FrameType type = FrameType::hello;
  std::string payload;
};

/// Bytes on the wire: u32 payload length, u8 type, payload.
[[nodiscard]] std::string encode(FrameType type, std::string_view payload);

/// Length of the payload and type, before every payload.
inline constexpr std::size_t kFrameHeader = 5;
/// Of the frame, header included, that a stream of at least a header begins with.
[[nodiscard]] std::size_t frame_bytes(std::string_view bytes);

/// Cuts a byte stream back into frames. Error{internal} on a length above kFrameLimit or an unknown
/// type.
class FrameDecoder {
 public:
  void append(std::string_view bytes) { buffer_.append(bytes); }
  [[nodiscard]] std::optional<Frame> next();

 private:
  std::string buffer_;
  std::size_t position_ = 0;
};

struct Hello {
  std::int64_t version = kProtocolVersion;
  std::string build;              ///< program and its version
  std::string host = {};          ///< a: its kernel's name for itself
  std::string address = {};       ///< a: its address on the connection to the controller, or empty
  std::string peer_address = {};  ///< a: the controller's address on it, or empty
};

/// As the first word of a rank's command: the agent's own program, wherever it was copied to.
inline constexpr const char* kAgentProgram = "@dstrain";

/// What one agent needs to run its part of the job.
struct PrepareJob {
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
  int generation = 0;        ///< counts the starts of this job, from 0
  std::string secret = {};   ///< 32 bytes, for the rendezvous (engine/base/handshake.h)
  int lease_ms = 0;          ///< end the ranks after so long without a ping; 0: never
  double stall_limit_s = 0;  ///< 0: learned; negative: never call a rank hung
  /// A file of the run directory that must be seen here, or the directory is not shared.
  std::string token = {};
  std::string peer_address = {};  ///< of another node, to choose the network interface by; or empty
  /// Ranks whose output goes to the console: "0,8", "all" or "none".
  std::string tee = "0";
};

struct ReadyAgent {
  int port = 0;  ///< of the rendezvous; 0 when this agent does not hold it
};

struct StartRanks {
  std::string master_address;
  int master_port = 0;
};

enum class StopKind : std::uint8_t {
  finish = 1,     ///< finish the step, save, end
  end = 2,        ///< end now
  elsewhere = 3,  ///< a rank of another node failed: as if one of this node had
};

struct PongMessage {
  std::int64_t ping_ns = 0;     ///< of the ping that it answers
  std::int64_t clock_ns = 0;    ///< CLOCK_REALTIME of the agent
  bool stop_signalled = false;  ///< somebody sent SIGTERM, SIGINT or SIGUSR1 to the agent itself
  int signal = 0;               ///< which
};

/// Where a rank stands, for the report of a hang.
struct RankState {
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
};

/// Training steps of one rank since its start (engine/base/rank_record.h).
struct RankPace {
  int rank = 0;
  std::int64_t steps = 0;
  std::int64_t steps_ns = 0;   ///< time in them
  std::int64_t waited_ns = 0;  ///< of it, waiting for other ranks or the device
};

/// Of the running ranks of one node.
struct PaceMessage {
  std::vector<RankPace> ranks;
};

/// `dstrain doctor` on another host.
struct InspectHost {
  std::string working_directory;
  std::string peer_address;
  bool listen = false;  ///< for the connections of its peers, until the agent ends
};

/// Where the other agents can try to connect to this one.
struct ListeningAgent {
  int port = 0;              ///< 0: nowhere
  std::string address;       ///< as in Hello
  std::string peer_address;  ///< as in Hello
};

struct Peer {
  int node = 0;
  std::string address;  ///< numeric
  int port = 0;
};
/// Whom the agent should try to reach.
struct ReachPeers {
  std::vector<Peer> peers;
};

struct PeerProblem {
  int node = 0;
  std::string kind;  ///< "refused", "timeout", "no route", or the system's words
};
/// Whom it has not reached.
struct ReachedPeers {
  std::vector<PeerProblem> problems;
};

/// An agent that another one starts by ssh.
struct TreeChild {
  std::string name;                      ///< by which it introduces itself to the controller
  std::vector<std::string> destination;  ///< words of ssh that say where
};

/// What an agent of an ssh tree does before its hello (launcher/job/tree_agent.h).
struct TreeOrder {
  std::string name;              ///< by which it dials; empty: its standard streams are the channel
  std::string target;            ///< to_line(DialTarget), for itself or its children
  std::int64_t limit_ms = 0;     ///< for a child, from its ssh to its welcome by the controller
  std::vector<std::string> ssh;  ///< program and options
  std::string command;           ///< remote command of every child
  std::vector<TreeChild> children;
};

/// A child that could not be started.
struct TreeProblem {
  std::string name;
  int exit_code = 0;  ///< of ssh; 0: the limit was over
  std::string words;  ///< end of ssh's standard error
};

struct StartedRank {
  int rank = 0;
  std::int64_t pid = 0;
};

struct RankOutput {
  int rank = 0;
  std::string lines;  ///< whole lines, each with its newline
};

/// How one rank ended and what it had been doing.
struct RankEnd {
  int rank = 0;
  std::string host;
  std::int64_t pid = 0;
  int exit_code = 0;  ///< valid when `signal` is 0
  int signal = 0;
  std::int64_t time_ns = 0;  ///< CLOCK_REALTIME when the agent saw the end
  std::int64_t stop_time_ns =
      0;                       ///< when the agent began to end all ranks; 0: this rank ended before
  bool finish_asked = false;   ///< SIGTERM had been sent as a request
  bool out_of_memory = false;  ///< the kernel's counter of kills for memory grew
  std::int64_t memory_limit_bytes = 0;  ///< with `out_of_memory`: of the control group; 0: unknown
  std::int64_t step = -1;
  std::string action;
  std::string error;  ///< first line of the error that the rank recorded, or empty
  int error_code = 0;
  std::int64_t error_time_ns = 0;
  std::string collective = {};          ///< the last collective, as in RankState
  std::vector<std::string> last_lines;  ///< of its log
};

struct AgentDone {
  int num_leftovers = 0;  ///< processes of the job beside the ranks that had to be killed
  std::vector<std::string> unkillable;  ///< "pid (name, state)" of what outlived SIGKILL
};

struct FaultMessage {
  int exit_code = 70;
  std::string message;
  std::string hint;
};

[[nodiscard]] std::string pack(const Hello& message);
[[nodiscard]] std::string pack(const PrepareJob& message);
[[nodiscard]] std::string pack(const ReadyAgent& message);
[[nodiscard]] std::string pack(const StartRanks& message);
[[nodiscard]] std::string pack(StopKind message);
[[nodiscard]] std::string pack(const StartedRank& message);
[[nodiscard]] std::string pack(const RankOutput& message);
[[nodiscard]] std::string pack(const RankEnd& message);
[[nodiscard]] std::string pack(const AgentDone& message);
[[nodiscard]] std::string pack(const FaultMessage& message);
[[nodiscard]] std::string pack(const PongMessage& message);
[[nodiscard]] std::string pack(const RankState& message);
[[nodiscard]] std::string pack(const PaceMessage& message);
[[nodiscard]] std::string pack(const InspectHost& message);
[[nodiscard]] std::string pack(const ListeningAgent& message);
[[nodiscard]] std::string pack(const ReachPeers& message);
[[nodiscard]] std::string pack(const ReachedPeers& message);
[[nodiscard]] std::string pack(const TreeOrder& message);
[[nodiscard]] std::string pack(const TreeProblem& message);
[[nodiscard]] std::string pack_ping(std::int64_t clock_ns);

/// Error{hosts} when the other side is no dstrain or speaks another version.
[[nodiscard]] Hello unpack_hello(const Frame& frame);
[[nodiscard]] PrepareJob unpack_prepare(const Frame& frame);
[[nodiscard]] ReadyAgent unpack_ready(const Frame& frame);
[[nodiscard]] StartRanks unpack_start(const Frame& frame);
[[nodiscard]] StopKind unpack_stop(const Frame& frame);
[[nodiscard]] StartedRank unpack_started(const Frame& frame);
[[nodiscard]] RankOutput unpack_console(const Frame& frame);
[[nodiscard]] RankEnd unpack_ended(const Frame& frame);
[[nodiscard]] AgentDone unpack_done(const Frame& frame);
[[nodiscard]] FaultMessage unpack_fault(const Frame& frame);
[[nodiscard]] PongMessage unpack_pong(const Frame& frame);
[[nodiscard]] RankState unpack_state(const Frame& frame);
[[nodiscard]] PaceMessage unpack_pace(const Frame& frame);
[[nodiscard]] InspectHost unpack_inspect(const Frame& frame);
[[nodiscard]] ListeningAgent unpack_listening(const Frame& frame);
[[nodiscard]] ReachPeers unpack_reach(const Frame& frame);
[[nodiscard]] ReachedPeers unpack_reached(const Frame& frame);
[[nodiscard]] TreeOrder unpack_tree(const Frame& frame);
[[nodiscard]] TreeProblem unpack_tree_problem(const Frame& frame);
[[nodiscard]] std::int64_t unpack_ping(const Frame& frame);

}  // namespace dstrain::launcher
