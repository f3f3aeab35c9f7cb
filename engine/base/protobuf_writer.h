#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/bytes.h"

/// Fields of protocol buffer messages, appended to a text. A message inside another one is made
/// first and then put as bytes.
namespace dstrain::protobuf {

enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

inline void put_raw_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(static_cast<unsigned char>(value | 0x80)));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

inline void put_tag(std::string& out, unsigned field, Wire wire) {
  put_raw_varint(out, (std::uint64_t{field} << 3) | static_cast<std::uint64_t>(wire));
}

/// int32, int64 (two's complement), uint32, uint64, bool and enum fields.
inline void put_varint(std::string& out, unsigned field, std::uint64_t value) {
  put_tag(out, field, Wire::varint);
  put_raw_varint(out, value);
}

/// string, bytes and message fields.
inline void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_tag(out, field, Wire::bytes);
  put_raw_varint(out, bytes.size());
  out.append(bytes);
}

inline void put_fixed64(std::string& out, unsigned field, std::uint64_t value) {
  put_tag(out, field, Wire::fixed64);
  put_little_endian(out, value);
}

inline void put_double(std::string& out, unsigned field, double value) {
  put_fixed64(out, field, std::bit_cast<std::uint64_t>(value));
}

inline void put_float(std::string& out, unsigned field, float value) {
  put_tag(out, field, Wire::fixed32);
  put_little_endian(out, std::bit_cast<std::uint32_t>(value));
}

}  // namespace dstrain::protobuf
