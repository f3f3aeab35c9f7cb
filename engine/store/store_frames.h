#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/frame_reader.h"

/// What the job's store and its clients say to each other after the handshake: frames of a 32-bit
/// length and so many bytes, integers little-endian.
namespace dstrain::comm {

inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxValueBytes = std::size_t{16} << 20U;

struct StoreRequest {
  enum class Operation : std::uint8_t {
    set,
    get,      ///< answered when the key is there
    try_get,  ///< answered at once
    add,
    forget,  ///< of the get with the same id; has no answer
  };
  std::uint32_t id = 0;  ///< chosen by the client, repeated in the answer
  Operation operation = Operation::set;
  std::int64_t amount = 0;  ///< of add
  std::string key;
  std::string value;  ///< of set
};

struct StoreReply {
  enum class Status : std::uint8_t {
    good,
    absent,
    full,      ///< the store may not grow further
    no_number  ///< add to what is no number, or beyond 64 bits
  };
  std::uint32_t id = 0;
  Status status = Status::good;
  std::int64_t sum = 0;  ///< of add
  std::string value;     ///< of get and try_get
};

[[nodiscard]] std::string encode(const StoreRequest& request);
/// The frame but for the value, whose `value_bytes` follow: a large value is sent to many clients
/// without a copy for each.
[[nodiscard]] std::string encode_head(const StoreReply& reply, std::size_t value_bytes);

/// Nothing when the bytes are no such message.
[[nodiscard]] std::optional<StoreRequest> decode_request(std::string_view frame);
[[nodiscard]] std::optional<StoreReply> decode_reply(std::string_view frame);

/// Cuts a stream into these frames.
[[nodiscard]] FrameReader make_frame_reader();

}  // namespace dstrain::comm
