#include "engine/comm/store_frames.h"

#include <type_traits>

namespace dstrain::comm {
namespace {

constexpr std::size_t kLengthBytes = 4;
/// id, operation, amount and the key's length; a reply has less.
constexpr std::size_t kMaxHeadBytes = 4 + 1 + 8 + 4;
constexpr std::size_t kMaxFrameBytes = kMaxHeadBytes + kMaxKeyBytes + kMaxValueBytes;
/// A buffer that has held a large value is not kept for small ones.
constexpr std::size_t kKeptBytes = std::size_t{256} << 10U;

template <class Integer>
void put(std::string& to, Integer value) {
  auto bits = static_cast<std::make_unsigned_t<Integer>>(value);
  for (std::size_t i = 0; i < sizeof value; ++i) {
    to.push_back(static_cast<char>(bits & 0xffU));
    if constexpr (sizeof value > 1) bits >>= 8U;
  }
}

/// Takes `value` off the front of `from`; false when it is too short.
template <class Integer>
bool take(std::string_view& from, Integer& value) {
  if (from.size() < sizeof value) return false;
  std::uint64_t bits = 0;
  for (std::size_t i = sizeof value; i-- > 0;) {
    bits = (bits << 8U) | static_cast<std::uint8_t>(from[i]);
  }
  value = static_cast<Integer>(bits);
  from.remove_prefix(sizeof value);
  return true;
}

}  // namespace

std::string encode(const StoreRequest& request) {
  std::string frame;
  const std::size_t size = kMaxHeadBytes + request.key.size() + request.value.size();
  frame.reserve(kLengthBytes + size);
  put(frame, static_cast<std::uint32_t>(size));
  put(frame, request.id);
  put(frame, static_cast<std::uint8_t>(request.operation));
  put(frame, request.amount);
  put(frame, static_cast<std::uint32_t>(request.key.size()));
  frame.append(request.key).append(request.value);
  return frame;
}

std::string encode_head(const StoreReply& reply, std::size_t value_bytes) {
  std::string head;
  put(head, static_cast<std::uint32_t>(sizeof reply.id + 1 + sizeof reply.sum + value_bytes));
  put(head, reply.id);
  put(head, static_cast<std::uint8_t>(reply.status));
  put(head, reply.sum);
  return head;
}

std::optional<StoreRequest> decode_request(std::string_view frame) {
  StoreRequest request;
  std::uint8_t operation = 0;
  std::uint32_t key_bytes = 0;
  const bool good = take(frame, request.id) && take(frame, operation) &&
                    take(frame, request.amount) && take(frame, key_bytes);
  if (!good || key_bytes > kMaxKeyBytes || key_bytes > frame.size()) return std::nullopt;
  if (operation > static_cast<std::uint8_t>(StoreRequest::Operation::forget)) return std::nullopt;
  if (frame.size() - key_bytes > kMaxValueBytes) return std::nullopt;
  request.operation = static_cast<StoreRequest::Operation>(operation);
  request.key = frame.substr(0, key_bytes);
  request.value = frame.substr(key_bytes);
  return request;
}

std::optional<StoreReply> decode_reply(std::string_view frame) {
  StoreReply reply;
  std::uint8_t status = 0;
  if (!take(frame, reply.id) || !take(frame, status) || !take(frame, reply.sum))
    return std::nullopt;
  if (status > static_cast<std::uint8_t>(StoreReply::Status::no_number)) return std::nullopt;
  reply.status = static_cast<StoreReply::Status>(status);
  reply.value = frame;
  return reply;
}

std::size_t FrameReader::length() const {
  std::string_view bytes = std::string_view(buffer_).substr(begin_);
  std::uint32_t length = 0;
  (void)take(bytes, length);
  return length;
}

FrameReader::State FrameReader::state() const {
  const std::size_t held = buffer_.size() - begin_;
  if (held < kLengthBytes) return State::incomplete;
  if (length() > kMaxFrameBytes) return State::too_long;
  return held - kLengthBytes < length() ? State::incomplete : State::complete;
}

std::string_view FrameReader::front() const {
  return std::string_view(buffer_).substr(begin_ + kLengthBytes, length());
}

void FrameReader::pop() { begin_ += kLengthBytes + length(); }

void FrameReader::compact() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  if (buffer_.empty() && buffer_.capacity() > kKeptBytes) buffer_.shrink_to_fit();
}

}  // namespace dstrain::comm
