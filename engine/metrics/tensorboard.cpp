#include "engine/metrics/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>

#include "engine/base/bytes.h"

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

void put_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(static_cast<unsigned char>(value | 0x80)));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

// Protocol buffer wire types.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_tag(std::string& out, unsigned field, Wire wire) {
  put_varint(out, (std::uint64_t{field} << 3) | static_cast<std::uint64_t>(wire));
}
void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_tag(out, field, Wire::bytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}

/// Event { double wall_time = 1; int64 step = 2; ... }
std::string event(double wall_time_s, std::int64_t step) {
  std::string out;
  put_tag(out, 1, Wire::fixed64);
  put_little_endian(out, std::bit_cast<std::uint64_t>(wall_time_s));
  put_tag(out, 2, Wire::varint);
  put_varint(out, static_cast<std::uint64_t>(step));
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
  put_bytes(out, 3, "brain.Event:2");  // Event.file_version
  return out;
}

std::string start_event(double wall_time_s, std::int64_t step) {
  std::string session_log;
  put_tag(session_log, 1, Wire::varint);  // SessionLog.status = START
  put_varint(session_log, 1);
  std::string out = event(wall_time_s, step);
  put_bytes(out, 7, session_log);  // Event.session_log
  return out;
}

std::string scalar_event(double wall_time_s, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);   // Summary.Value.tag
    put_tag(value, 2, Wire::fixed32);  // Summary.Value.simple_value
    put_little_endian(value, std::bit_cast<std::uint32_t>(static_cast<float>(scalar.value)));
    put_bytes(summary, 1, value);  // Summary.value
  }
  std::string out = event(wall_time_s, step);
  put_bytes(out, 5, summary);  // Event.summary
  return out;
}

std::string file_name(double wall_time_s) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return fmt::format("events.out.tfevents.{:017.6f}.{}.{}", wall_time_s,
                     host[0] == '\0' ? "host" : host.data(), ::getpid());
}

}  // namespace dstrain::tensorboard
