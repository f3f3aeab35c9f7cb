#include "launcher/protocol/protocol.h"

#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <tuple>

#include "engine/base/error.h"
#include "launcher/protocol/wire.h"

namespace dstrain::launcher {
namespace {

constexpr std::string_view kName = "dstrain";

// ---- the fields of each message, in the order in which they travel

/// `M` is a T that may be const.
template <class M, class T>
concept Is = std::same_as<std::remove_const_t<M>, T>;

auto fields(Is<PrepareJob> auto& m) {
  return std::tie(m.run_directory, m.working_directory, m.command, m.environment, m.host,
                  m.first_rank, m.num_ranks, m.world_size, m.cores, m.rendezvous_address,
                  m.generation, m.secret, m.lease_ms, m.stall_limit_s, m.token, m.peer_address,
                  m.tee);
}
auto fields(Is<ReadyAgent> auto& m) { return std::tie(m.port); }
auto fields(Is<StartRanks> auto& m) { return std::tie(m.master_address, m.master_port); }
auto fields(Is<StartedRank> auto& m) { return std::tie(m.rank, m.pid); }
auto fields(Is<RankOutput> auto& m) { return std::tie(m.rank, m.lines); }
auto fields(Is<RankEnd> auto& m) {
  return std::tie(m.rank, m.host, m.pid, m.exit_code, m.signal, m.time_ns, m.stop_time_ns,
                  m.finish_asked, m.out_of_memory, m.memory_limit_bytes, m.step, m.action, m.error,
                  m.error_code, m.error_time_ns, m.collective, m.last_lines);
}
auto fields(Is<AgentDone> auto& m) { return std::tie(m.num_leftovers, m.unkillable); }
auto fields(Is<FaultMessage> auto& m) { return std::tie(m.exit_code, m.message, m.hint); }
auto fields(Is<PongMessage> auto& m) {
  return std::tie(m.ping_ns, m.clock_ns, m.stop_signalled, m.signal);
}
auto fields(Is<RankState> auto& m) {
  return std::tie(m.rank, m.host, m.pid, m.step, m.action, m.section, m.progress, m.stalled_ns,
                  m.limit_ns, m.collectives, m.in_collective, m.collective, m.stack,
                  m.process_state);
}
auto fields(Is<RankPace> auto& m) { return std::tie(m.rank, m.steps, m.steps_ns, m.waited_ns); }
auto fields(Is<PaceMessage> auto& m) { return std::tie(m.ranks); }
auto fields(Is<InspectHost> auto& m) {
  return std::tie(m.working_directory, m.peer_address, m.listen);
}
auto fields(Is<ListeningAgent> auto& m) { return std::tie(m.port, m.address, m.peer_address); }
auto fields(Is<Peer> auto& m) { return std::tie(m.node, m.address, m.port); }
auto fields(Is<ReachPeers> auto& m) { return std::tie(m.peers); }
auto fields(Is<PeerProblem> auto& m) { return std::tie(m.node, m.kind); }
auto fields(Is<ReachedPeers> auto& m) { return std::tie(m.problems); }
auto fields(Is<TreeChild> auto& m) { return std::tie(m.name, m.destination); }
auto fields(Is<TreeOrder> auto& m) {
  return std::tie(m.name, m.target, m.limit_ms, m.ssh, m.command, m.children);
}
auto fields(Is<TreeProblem> auto& m) { return std::tie(m.name, m.exit_code, m.words); }

void put(WireWriter& writer, std::integral auto value) { writer.number(value); }
/// Seconds, to the millisecond.
void put(WireWriter& writer, double value) { writer.number(std::llround(value * 1000)); }
void put(WireWriter& writer, const std::string& value) { writer.text(value); }
void put(WireWriter& writer, const std::vector<std::string>& value) { writer.texts(value); }

void get(WireReader& reader, int& value) { value = reader.integer(); }
void get(WireReader& reader, std::int64_t& value) { value = reader.number(); }
void get(WireReader& reader, bool& value) { value = reader.number() != 0; }
void get(WireReader& reader, char& value) { value = static_cast<char>(reader.integer()); }
void get(WireReader& reader, double& value) { value = static_cast<double>(reader.number()) / 1000; }
void get(WireReader& reader, std::string& value) { value = reader.text(); }
void get(WireReader& reader, std::vector<std::string>& value) { value = reader.texts(); }

template <class Item>
void put(WireWriter& writer, const std::vector<Item>& items);
template <class Item>
void get(WireReader& reader, std::vector<Item>& items);

template <class M>
void put_fields(WireWriter& writer, const M& m) {
  std::apply([&writer](const auto&... field) { (put(writer, field), ...); }, fields(m));
}

template <class M>
void get_fields(WireReader& reader, M& m) {
  std::apply([&reader](auto&... field) { (get(reader, field), ...); }, fields(m));
}

template <class Item>
void put(WireWriter& writer, const std::vector<Item>& items) {
  writer.number(static_cast<std::int64_t>(items.size()));
  for (const Item& item : items) put_fields(writer, item);
}

template <class Item>
void get(WireReader& reader, std::vector<Item>& items) {
  // A wrong count ends at the end of the payload.
  for (std::int64_t left = reader.number(); left > 0; --left)
    get_fields(reader, items.emplace_back());
}

template <class M>
std::string pack_fields(const M& m) {
  WireWriter writer;
  put_fields(writer, m);
  return writer.take();
}

template <class M>
M unpack_fields(const Frame& frame) {
  WireReader reader(frame.payload);
  M m;
  get_fields(reader, m);
  reader.end();
  return m;
}

}  // namespace

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

std::string pack(const PrepareJob& m) { return pack_fields(m); }
std::string pack(const ReadyAgent& m) { return pack_fields(m); }
std::string pack(const StartRanks& m) { return pack_fields(m); }
std::string pack(const StartedRank& m) { return pack_fields(m); }
std::string pack(const RankOutput& m) { return pack_fields(m); }
std::string pack(const RankEnd& m) { return pack_fields(m); }
std::string pack(const AgentDone& m) { return pack_fields(m); }
std::string pack(const FaultMessage& m) { return pack_fields(m); }
std::string pack(const PongMessage& m) { return pack_fields(m); }
std::string pack(const RankState& m) { return pack_fields(m); }
std::string pack(const PaceMessage& m) { return pack_fields(m); }
std::string pack(const InspectHost& m) { return pack_fields(m); }
std::string pack(const ListeningAgent& m) { return pack_fields(m); }
std::string pack(const ReachPeers& m) { return pack_fields(m); }
std::string pack(const ReachedPeers& m) { return pack_fields(m); }
std::string pack(const TreeOrder& m) { return pack_fields(m); }
std::string pack(const TreeProblem& m) { return pack_fields(m); }

PrepareJob unpack_prepare(const Frame& frame) { return unpack_fields<PrepareJob>(frame); }
ReadyAgent unpack_ready(const Frame& frame) { return unpack_fields<ReadyAgent>(frame); }
StartRanks unpack_start(const Frame& frame) { return unpack_fields<StartRanks>(frame); }
StartedRank unpack_started(const Frame& frame) { return unpack_fields<StartedRank>(frame); }
RankOutput unpack_console(const Frame& frame) { return unpack_fields<RankOutput>(frame); }
RankEnd unpack_ended(const Frame& frame) { return unpack_fields<RankEnd>(frame); }
AgentDone unpack_done(const Frame& frame) { return unpack_fields<AgentDone>(frame); }
FaultMessage unpack_fault(const Frame& frame) { return unpack_fields<FaultMessage>(frame); }
PongMessage unpack_pong(const Frame& frame) { return unpack_fields<PongMessage>(frame); }
RankState unpack_state(const Frame& frame) { return unpack_fields<RankState>(frame); }
PaceMessage unpack_pace(const Frame& frame) { return unpack_fields<PaceMessage>(frame); }
InspectHost unpack_inspect(const Frame& frame) { return unpack_fields<InspectHost>(frame); }
ListeningAgent unpack_listening(const Frame& frame) { return unpack_fields<ListeningAgent>(frame); }
ReachPeers unpack_reach(const Frame& frame) { return unpack_fields<ReachPeers>(frame); }
ReachedPeers unpack_reached(const Frame& frame) { return unpack_fields<ReachedPeers>(frame); }
TreeOrder unpack_tree(const Frame& frame) { return unpack_fields<TreeOrder>(frame); }
TreeProblem unpack_tree_problem(const Frame& frame) { return unpack_fields<TreeProblem>(frame); }

std::string pack(StopKind m) { return WireWriter().number(static_cast<std::int64_t>(m)).take(); }

StopKind unpack_stop(const Frame& frame) {
  WireReader reader(frame.payload);
  const std::int64_t kind = reader.number();
  reader.end();
  if (kind == static_cast<std::int64_t>(StopKind::finish)) return StopKind::finish;
  if (kind == static_cast<std::int64_t>(StopKind::elsewhere)) return StopKind::elsewhere;
  return StopKind::end;
}

std::string pack_ping(std::int64_t clock_ns) { return WireWriter().number(clock_ns).take(); }

std::int64_t unpack_ping(const Frame& frame) {
  WireReader reader(frame.payload);
  const std::int64_t clock_ns = reader.number();
  reader.end();
  return clock_ns;
}

}  // namespace dstrain::launcher
