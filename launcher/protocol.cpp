#include "launcher/protocol.h"

#include <fmt/format.h>

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
  if (rest.size() < kHeader) return std::nullopt;
  std::uint32_t size = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    size |= static_cast<std::uint32_t>(static_cast<unsigned char>(rest[i])) << (8 * i);
  }
  const auto type = static_cast<std::uint8_t>(rest[4]);
  if (size > kFrameLimit || type < static_cast<std::uint8_t>(FrameType::hello) ||
      type > static_cast<std::uint8_t>(FrameType::fault)) {
    throw Error(
        ErrorKind::internal,
        fmt::format("not a dstrain frame: type {}, {} bytes (limit {})", type, size, kFrameLimit),
        "something else wrote into the channel between controller and agent");
  }
  if (rest.size() < kHeader + size) {
    buffer_.erase(0, position_);
    position_ = 0;
    return std::nullopt;
  }
  Frame frame{static_cast<FrameType>(type), std::string(rest.substr(kHeader, size))};
  position_ += kHeader + size;
  if (position_ == buffer_.size()) {
    buffer_.clear();
    position_ = 0;
  }
  return frame;
}

std::string pack(const Hello& m) {
  return WireWriter().text(kName).number(m.version).text(m.build).take();
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
  return kind == static_cast<std::int64_t>(StopKind::finish) ? StopKind::finish : StopKind::end;
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
      .number(m.step)
      .text(m.action)
      .text(m.error)
      .number(m.error_code)
      .number(m.error_time_ns)
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
  m.step = reader.number();
  m.action = reader.text();
  m.error = reader.text();
  m.error_code = reader.integer();
  m.error_time_ns = reader.number();
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

}  // namespace dstrain::launcher
