#include "launcher/protocol.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/error.h"
#include "launcher/wire.h"

namespace dstrain::launcher {
namespace {

constexpr std::string_view kName = "dstrain";
constexpr std::size_t kHeader = 5;

}  // namespace

std::string encode(FrameType type, std::string_view payload) {
  DSTRAIN_CHECK(payload.size() <= kFrameLimit, "frame too large");
  std::string bytes;
  bytes.reserve(kHeader + payload.size());
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
  if (rest.size() < kHeader) return wait();
  std::uint32_t size = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    size |= static_cast<std::uint32_t>(static_cast<unsigned char>(rest[i])) << (8 * i);
  }
  const auto type = static_cast<std::uint8_t>(rest[4]);
  if (size > kFrameLimit || type < static_cast<std::uint8_t>(FrameType::hello) ||
      type > static_cast<std::uint8_t>(FrameType::reached)) {
    throw Error(
        ErrorKind::internal,
        fmt::format("not a dstrain frame: type {}, {} bytes (limit {})", type, size, kFrameLimit),
        "something else wrote into the channel between controller and agent");
  }
  if (rest.size() < kHeader + size) return wait();
  Frame frame{static_cast<FrameType>(type), std::string(rest.substr(kHeader, size))};
  position_ += kHeader + size;
  if (position_ == buffer_.size()) {
    buffer_.clear();
    position_ = 0;
  }
  return frame;
}

std::string pack(const Hello& m) {
  return WireWriter()
      .text(kName)
      .number(m.version)
      .text(m.build)
      .text(m.host)
      .text(m.address)
      .text(m.peer_address)
      .take();
}

Hello unpack_hello(const Frame& frame) {
  WireReader reader(frame.payload);
  if (frame.type != FrameType::hello || reader.text() != kName) {
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

std::string pack(const PrepareJob& m) {
  return WireWriter()
      .text(m.run_directory)
      .text(m.working_directory)
      .texts(m.command)
      .texts(m.environment)
      .text(m.host)
      .number(m.first_rank)
      .number(m.num_ranks)
      .number(m.world_size)
      .number(m.cores)
      .text(m.rendezvous_address)
      .number(m.generation)
      .text(m.secret)
      .number(m.lease_ms)
      .number(std::llround(m.stall_limit_s * 1000))
      .text(m.token)
      .text(m.peer_address)
      .text(m.tee)
      .take();
}

PrepareJob unpack_prepare(const Frame& frame) {
  WireReader reader(frame.payload);
  PrepareJob m;
  m.run_directory = reader.text();
  m.working_directory = reader.text();
  m.command = reader.texts();
  m.environment = reader.texts();
  m.host = reader.text();
  m.first_rank = reader.integer();
  m.num_ranks = reader.integer();
  m.world_size = reader.integer();
  m.cores = reader.integer();
  m.rendezvous_address = reader.text();
  m.generation = reader.integer();
  m.secret = reader.text();
  m.lease_ms = reader.integer();
  m.stall_limit_s = static_cast<double>(reader.number()) / 1000;
  m.token = reader.text();
  m.peer_address = reader.text();
  m.tee = reader.text();
  reader.end();
  return m;
}

std::string pack(const ReadyAgent& m) { return WireWriter().number(m.port).take(); }

ReadyAgent unpack_ready(const Frame& frame) {
  WireReader reader(frame.payload);
  const ReadyAgent m{reader.integer()};
  reader.end();
  return m;
}

std::string pack(const StartRanks& m) {
  return WireWriter().text(m.master_address).number(m.master_port).take();
}

StartRanks unpack_start(const Frame& frame) {
  WireReader reader(frame.payload);
  StartRanks m;
  m.master_address = reader.text();
  m.master_port = reader.integer();
  reader.end();
  return m;
}

std::string pack(StopKind m) { return WireWriter().number(static_cast<std::int64_t>(m)).take(); }

StopKind unpack_stop(const Frame& frame) {
  WireReader reader(frame.payload);
  const std::int64_t kind = reader.number();
  reader.end();
  if (kind == static_cast<std::int64_t>(StopKind::finish)) return StopKind::finish;
  if (kind == static_cast<std::int64_t>(StopKind::elsewhere)) return StopKind::elsewhere;
  return StopKind::end;
}

std::string pack(const StartedRank& m) { return WireWriter().number(m.rank).number(m.pid).take(); }

StartedRank unpack_started(const Frame& frame) {
  WireReader reader(frame.payload);
  StartedRank m;
  m.rank = reader.integer();
  m.pid = reader.number();
  reader.end();
  return m;
}

std::string pack(const RankOutput& m) { return WireWriter().number(m.rank).text(m.lines).take(); }

RankOutput unpack_console(const Frame& frame) {
  WireReader reader(frame.payload);
  RankOutput m;
  m.rank = reader.integer();
  m.lines = reader.text();
  reader.end();
  return m;
}

std::string pack(const RankEnd& m) {
  return WireWriter()
      .number(m.rank)
      .text(m.host)
      .number(m.pid)
      .number(m.exit_code)
      .number(m.signal)
      .number(m.time_ns)
      .number(m.stop_time_ns)
      .number(m.finish_asked ? 1 : 0)
      .number(m.out_of_memory ? 1 : 0)
      .number(m.memory_limit_bytes)
      .number(m.step)
      .text(m.action)
      .text(m.error)
      .number(m.error_code)
      .number(m.error_time_ns)
      .text(m.collective)
      .texts(m.last_lines)
      .take();
}

RankEnd unpack_ended(const Frame& frame) {
  WireReader reader(frame.payload);
  RankEnd m;
  m.rank = reader.integer();
  m.host = reader.text();
  m.pid = reader.number();
  m.exit_code = reader.integer();
  m.signal = reader.integer();
  m.time_ns = reader.number();
  m.stop_time_ns = reader.number();
  m.finish_asked = reader.number() != 0;
  m.out_of_memory = reader.number() != 0;
  m.memory_limit_bytes = reader.number();
  m.step = reader.number();
  m.action = reader.text();
  m.error = reader.text();
  m.error_code = reader.integer();
  m.error_time_ns = reader.number();
  m.collective = reader.text();
  m.last_lines = reader.texts();
  reader.end();
  return m;
}

std::string pack(const AgentDone& m) {
  return WireWriter().number(m.num_leftovers).texts(m.unkillable).take();
}

AgentDone unpack_done(const Frame& frame) {
  WireReader reader(frame.payload);
  AgentDone m;
  m.num_leftovers = reader.integer();
  m.unkillable = reader.texts();
  reader.end();
  return m;
}

std::string pack(const FaultMessage& m) {
  return WireWriter().number(m.exit_code).text(m.message).text(m.hint).take();
}

FaultMessage unpack_fault(const Frame& frame) {
  WireReader reader(frame.payload);
  FaultMessage m;
  m.exit_code = reader.integer();
  m.message = reader.text();
  m.hint = reader.text();
  reader.end();
  return m;
}

std::string pack(const PongMessage& m) {
  return WireWriter()
      .number(m.ping_ns)
      .number(m.clock_ns)
      .number(m.stop_signalled ? 1 : 0)
      .number(m.signal)
      .take();
}

PongMessage unpack_pong(const Frame& frame) {
  WireReader reader(frame.payload);
  PongMessage m;
  m.ping_ns = reader.number();
  m.clock_ns = reader.number();
  m.stop_signalled = reader.number() != 0;
  m.signal = reader.integer();
  reader.end();
  return m;
}

std::string pack(const RankState& m) {
  return WireWriter()
      .number(m.rank)
      .text(m.host)
      .number(m.pid)
      .number(m.step)
      .text(m.action)
      .text(m.section)
      .number(m.progress)
      .number(m.stalled_ns)
      .number(m.limit_ns)
      .number(m.collectives)
      .number(m.in_collective ? 1 : 0)
      .text(m.collective)
      .text(m.stack)
      .number(m.process_state)
      .take();
}

RankState unpack_state(const Frame& frame) {
  WireReader reader(frame.payload);
  RankState m;
  m.rank = reader.integer();
  m.host = reader.text();
  m.pid = reader.number();
  m.step = reader.number();
  m.action = reader.text();
  m.section = reader.text();
  m.progress = reader.number();
  m.stalled_ns = reader.number();
  m.limit_ns = reader.number();
  m.collectives = reader.number();
  m.in_collective = reader.number() != 0;
  m.collective = reader.text();
  m.stack = reader.text();
  m.process_state = static_cast<char>(reader.integer());
  reader.end();
  return m;
}

std::string pack(const PaceMessage& m) {
  WireWriter writer;
  writer.number(static_cast<std::int64_t>(m.ranks.size()));
  for (const RankPace& rank : m.ranks) {
    writer.number(rank.rank).number(rank.steps).number(rank.steps_ns).number(rank.waited_ns);
  }
  return writer.take();
}

PaceMessage unpack_pace(const Frame& frame) {
  WireReader reader(frame.payload);
  PaceMessage m;
  // A wrong count ends at the end of the payload.
  for (std::int64_t left = reader.number(); left > 0; --left) {
    RankPace rank;
    rank.rank = reader.integer();
    rank.steps = reader.number();
    rank.steps_ns = reader.number();
    rank.waited_ns = reader.number();
    m.ranks.push_back(rank);
  }
  reader.end();
  return m;
}

std::string pack(const InspectHost& m) {
  return WireWriter()
      .text(m.working_directory)
      .text(m.peer_address)
      .number(m.listen ? 1 : 0)
      .take();
}

InspectHost unpack_inspect(const Frame& frame) {
  WireReader reader(frame.payload);
  InspectHost m;
  m.working_directory = reader.text();
  m.peer_address = reader.text();
  m.listen = reader.number() != 0;
  reader.end();
  return m;
}

std::string pack(const ListeningAgent& m) {
  return WireWriter().number(m.port).text(m.address).text(m.peer_address).take();
}

ListeningAgent unpack_listening(const Frame& frame) {
  WireReader reader(frame.payload);
  ListeningAgent m;
  m.port = reader.integer();
  m.address = reader.text();
  m.peer_address = reader.text();
  reader.end();
  return m;
}

std::string pack(const ReachPeers& m) {
  WireWriter writer;
  writer.number(static_cast<std::int64_t>(m.peers.size()));
  for (const Peer& peer : m.peers) writer.number(peer.node).text(peer.address).number(peer.port);
  return writer.take();
}

ReachPeers unpack_reach(const Frame& frame) {
  WireReader reader(frame.payload);
  ReachPeers m;
  for (std::int64_t left = reader.number(); left > 0; --left) {
    Peer peer;
    peer.node = reader.integer();
    peer.address = reader.text();
    peer.port = reader.integer();
    m.peers.push_back(std::move(peer));
  }
  reader.end();
  return m;
}

std::string pack(const ReachedPeers& m) {
  WireWriter writer;
  writer.number(static_cast<std::int64_t>(m.problems.size()));
  for (const PeerProblem& problem : m.problems) writer.number(problem.node).text(problem.kind);
  return writer.take();
}

ReachedPeers unpack_reached(const Frame& frame) {
  WireReader reader(frame.payload);
  ReachedPeers m;
  for (std::int64_t left = reader.number(); left > 0; --left) {
    PeerProblem problem;
    problem.node = reader.integer();
    problem.kind = reader.text();
    m.problems.push_back(std::move(problem));
  }
  reader.end();
  return m;
}

std::string pack(const TreeOrder& m) {
  WireWriter writer;
  writer.text(m.name).text(m.target).number(m.limit_ms).texts(m.ssh).text(m.command);
  writer.number(static_cast<std::int64_t>(m.children.size()));
  for (const TreeChild& child : m.children) writer.text(child.name).texts(child.destination);
  return writer.take();
}

TreeOrder unpack_tree(const Frame& frame) {
  WireReader reader(frame.payload);
  TreeOrder m;
  m.name = reader.text();
  m.target = reader.text();
  m.limit_ms = reader.number();
  m.ssh = reader.texts();
  m.command = reader.text();
  // A wrong count ends at the end of the payload.
  for (std::int64_t left = reader.number(); left > 0; --left) {
    TreeChild child;
    child.name = reader.text();
    child.destination = reader.texts();
    m.children.push_back(std::move(child));
  }
  reader.end();
  return m;
}

std::string pack(const TreeProblem& m) {
  return WireWriter().text(m.name).number(m.exit_code).text(m.words).take();
}

TreeProblem unpack_tree_problem(const Frame& frame) {
  WireReader reader(frame.payload);
  TreeProblem m;
  m.name = reader.text();
  m.exit_code = reader.integer();
  m.words = reader.text();
  reader.end();
  return m;
}

std::string pack_ping(std::int64_t clock_ns) { return WireWriter().number(clock_ns).take(); }

std::int64_t unpack_ping(const Frame& frame) {
  WireReader reader(frame.payload);
  const std::int64_t clock_ns = reader.number();
  reader.end();
  return clock_ns;
}

}  // namespace dstrain::launcher
