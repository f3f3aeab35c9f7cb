#include "engine/metrics/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>

#include "engine/base/bytes.h"
#include "engine/base/host_name.h"
#include "engine/base/protobuf_writer.h"

namespace dstrain::tensorboard {
namespace {

consteval std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    // 0x82F63B78: the Castagnoli polynomial, lowest bit first.
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

/// Event { double wall_time = 1; int64 step = 2; ... }
std::string event(double wall_time_s, std::int64_t step) {
  std::string out;
  protobuf::put_double(out, 1, wall_time_s);
  protobuf::put_varint(out, 2, static_cast<std::uint64_t>(step));
  return out;
}

/// CRCs of data that holds CRCs are weak, hence the mask (LevelDB's).
std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8u; }

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes)
    crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFFu];
  return ~crc;
}

std::string record(std::string_view event) {
  std::string out;
  put_little_endian(out, std::uint64_t{event.size()});
  put_little_endian(out, masked(crc32c(out)));
  out.append(event);
  put_little_endian(out, masked(crc32c(event)));
  return out;
}

std::string version_event(double wall_time_s) {
  std::string out = event(wall_time_s, 0);
  protobuf::put_bytes(out, 3, "brain.Event:2");  // Event.file_version
  return out;
}

std::string start_event(double wall_time_s, std::int64_t step) {
  std::string session_log;
  protobuf::put_varint(session_log, 1, 1);  // SessionLog.status = START
  std::string out = event(wall_time_s, step);
  protobuf::put_bytes(out, 7, session_log);  // Event.session_log
  return out;
}

std::string scalar_event(double wall_time_s, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    protobuf::put_bytes(value, 1, scalar.tag);                        // Summary.Value.tag
    protobuf::put_float(value, 2, static_cast<float>(scalar.value));  // .simple_value
    protobuf::put_bytes(summary, 1, value);                           // Summary.value
  }
  std::string out = event(wall_time_s, step);
  protobuf::put_bytes(out, 5, summary);  // Event.summary
  return out;
}

std::string file_name(double wall_time_s) {
  const std::string host = host_name();
  return fmt::format("events.out.tfevents.{:017.6f}.{}.{}", wall_time_s,
                     host.empty() ? "host" : host, ::getpid());
}

}  // namespace dstrain::tensorboard
