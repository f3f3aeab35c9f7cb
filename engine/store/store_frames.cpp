#include "engine/store/store_frames.h"

#include "engine/base/bytes.h"

namespace dstrain::comm {
namespace {

constexpr std::size_t kLengthBytes = 4;
/// id, operation, amount and the key's length; a reply has less.
constexpr std::size_t kMaxHeadBytes = 4 + 1 + 8 + 4;
constexpr std::size_t kMaxFrameBytes = kMaxHeadBytes + kMaxKeyBytes + kMaxValueBytes;

}  // namespace

std::string encode(const StoreRequest& request) {
  std::string frame;
  const std::size_t size = kMaxHeadBytes + request.key.size() + request.value.size();
  frame.reserve(kLengthBytes + size);
  put_little_endian(frame, static_cast<std::uint32_t>(size));
  put_little_endian(frame, request.id);
  put_little_endian(frame, static_cast<std::uint8_t>(request.operation));
  put_little_endian(frame, request.amount);
  put_little_endian(frame, static_cast<std::uint32_t>(request.key.size()));
  frame.append(request.key).append(request.value);
  return frame;
}

std::string encode_head(const StoreReply& reply, std::size_t value_bytes) {
  std::string head;
  put_little_endian(
      head, static_cast<std::uint32_t>(sizeof reply.id + 1 + sizeof reply.sum + value_bytes));
  put_little_endian(head, reply.id);
  put_little_endian(head, static_cast<std::uint8_t>(reply.status));
  put_little_endian(head, reply.sum);
  return head;
}

std::optional<StoreRequest> decode_request(std::string_view frame) {
  StoreRequest request;
  std::uint8_t operation = 0;
  std::uint32_t key_bytes = 0;
  const bool good = take_little_endian(frame, request.id) && take_little_endian(frame, operation) &&
                    take_little_endian(frame, request.amount) &&
                    take_little_endian(frame, key_bytes);
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
  if (!take_little_endian(frame, reply.id) || !take_little_endian(frame, status) ||
      !take_little_endian(frame, reply.sum))
    return std::nullopt;
  if (status > static_cast<std::uint8_t>(StoreReply::Status::no_number)) return std::nullopt;
  reply.status = static_cast<StoreReply::Status>(status);
  reply.value = frame;
  return reply;
}

FrameReader make_frame_reader() { return {kLengthBytes, kMaxFrameBytes}; }

}  // namespace dstrain::comm
