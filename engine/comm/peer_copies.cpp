#include "engine/comm/peer_copies.h"

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/comm/checks.h"
#include "engine/comm/forwarding.h"
#include "engine/comm/peer_kernels.h"
#include "engine/comm/peer_memory.h"
#include "engine/device/stream.h"

namespace dstrain::comm {
namespace {

/// Smaller parts arrive sooner by a kernel of NCCL: an exchange by copies takes 20 us at least.
/// Where peers come late anyway that does not count, and a communicator of NCCL that is never used
/// takes no memory for its buffers.
constexpr std::size_t kMinPart = 256 << 10;

std::optional<SumType> sum_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Float:
      return SumType::fp32;
    case at::ScalarType::BFloat16:
      return SumType::bf16;
    case at::ScalarType::Half:
      return SumType::fp16;
    default:
      return {};
  }
}

class PeerCopies final : public Forwarding {
 public:
  PeerCopies(std::unique_ptr<Communicator> inner, std::unique_ptr<PeerMemory> memory,
             const Group& group, bool waits_long)
      : Forwarding(*inner),
        owned_(std::move(inner)),
        memory_(std::move(memory)),
        group_(group),
        waits_long_(waits_long),
        min_part_(waits_long ? 1 : kMinPart),
        device_(at::kCUDA, c10::cuda::current_device()),
        copies_(Stream::from_pool(device_, StreamPriority::high)),
        caller_(copies_),
        ready_(device_),
        sent_(device_) {}

  ~PeerCopies() override {
    if (std::uncaught_exceptions() == 0) {
      (void)memory_->await_readers(copies_.handle());
      caller_.synchronize();
      copies_.synchronize();
      return;
    }
    // After a failure a peer may never come. The memory is left to the end of the process: to free
    // it would wait for work of other groups, too.
    (void)memory_.release();
  }
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  bool overlaps() const override { return true; }

  bool end_waits() override {
    // Stream::query throws where the device has failed, and this is called while that unwinds.
    const auto idle = [](const Stream& stream) {
      return cudaStreamQuery(static_cast<cudaStream_t>(stream.handle())) != cudaErrorNotReady;
    };
    if (idle(caller_) && idle(copies_)) return inner_.end_waits();
    memory_->end_waits();
    (void)inner_.end_waits();
    return true;
  }

  void all_gather(at::Tensor& output, const at::Tensor& input) override {
    all_gather(output, input, [] {});
  }

  void all_gather(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    check_parts("all_gather", output, input, size());
    if (input.nbytes() < min_part_) return inner_.all_gather(output, input, meanwhile);
    const auto* from = static_cast<const char*>(input.const_data_ptr());
    auto* to = static_cast<char*>(output.mutable_data_ptr());
    const std::size_t part = input.nbytes();
    for (std::size_t first = 0; first < part; first += memory_->capacity()) {
      const std::size_t bytes = std::min(part - first, memory_->capacity());
      begin("all_gather", {to_index(size()), from + first}, bytes, first == 0);
      if (first == 0) {
        meanwhile();
        if (char* own = to + to_index(rank()) * part; own != from) copy(own, from, part);
      }
      finish("all_gather");
      place(to + first, part, bytes);
      check("all_gather", memory_->read(caller_.handle()));
    }
  }

  void reduce_scatter(at::Tensor& output, const at::Tensor& input) override {
    reduce_scatter(output, input, [] {});
  }

  void reduce_scatter(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    check_parts("reduce_scatter", input, output, size());
    const std::optional<SumType> type = sum_type(input.scalar_type());
    if (output.nbytes() < min_part_ || !type) {
      meanwhile();
      return inner_.reduce_scatter(output, input);
    }
    for (std::size_t first = 0; first < output.nbytes(); first += memory_->capacity()) {
      const std::size_t bytes = std::min(output.nbytes() - first, memory_->capacity());
      const auto* from = static_cast<const char*>(input.const_data_ptr()) + first;
      std::vector<const void*> parts;
      for (int peer = 0; peer < size(); ++peer)
        parts.push_back(from + to_index(peer) * output.nbytes());
      begin("reduce_scatter", parts, bytes, first == 0);
      if (first == 0) meanwhile();
      finish("reduce_scatter");
      PeerSum sum{.count = size(),
                  .sum = static_cast<char*>(output.mutable_data_ptr()) + first,
                  .n = static_cast<std::int64_t>(bytes / input.element_size()),
                  .type = *type};
      for (int peer = 0; peer < size(); ++peer)
        sum.parts[peer] = peer == rank() ? parts[to_index(peer)] : memory_->arrived(peer);
      check("reduce_scatter", add_parts(sum, caller_.handle()));
      check("reduce_scatter", memory_->read(caller_.handle()));
    }
  }

  /// Each rank sums its part and hands it to the others.
  void all_reduce(at::Tensor& x, ReduceOp op) override {
    const std::size_t part = x.nbytes() / to_index(size());
    // As copied_bytes() says (engine/program/simulate.h).
    const bool by_inner = waits_long_ && size() > 2 && part > memory_->capacity();
    if (op != ReduceOp::sum || !sum_type(x.scalar_type()) || x.numel() % size() != 0 ||
        part < min_part_ || by_inner)
      return inner_.all_reduce(x, op);
    const std::int64_t own = x.numel() / size();
    at::Tensor flat = x.view({-1});
    at::Tensor sum = flat.narrow(0, rank() * own, own);
    // A peer hands out its sum after it has this rank's part of it, so nothing that is still to be
    // sent is overwritten.
    reduce_scatter(sum, flat);
    all_gather(flat, sum);
  }

  void settle() override {
    if (!memory_->settled()) {
      begin("settle", {}, 0, /*first=*/true);
      finish("settle");
      check("settle", memory_->read(caller_.handle()));
    }
    if (!joined_) {
      sent_.record(copies_);
      sent_.wait(Stream::current(device_));
    }
    joined_ = true;
  }

 private:
  /// Copies of the first piece begin behind the present work of the caller's stream; those of
  /// further ones, which are there, do so where the memory does not say by itself when it is read.
  void begin(const char* operation, const std::vector<const void*>& from, std::size_t bytes,
             bool first) {
    caller_ = Stream::current(device_);
    if (first || !waits_long_) {
      ready_.record(caller_);
      ready_.wait(copies_);
    }
    joined_ = false;
    check(operation, memory_->send(from, bytes, copies_.handle()));
  }

  /// Without waits_long the next exchange begins behind what the caller enqueues up to it, so
  /// nothing overwrites what is read until then.
  void finish(const char* operation) {
    check(operation, memory_->receive(caller_.handle(), waits_long_));
  }

  void check(const char* operation, const char* error) const {
    if (error != nullptr) group_.fail(operation, error);
  }

  /// What has arrived, to `to` and, by rank, `stride` bytes behind it.
  void place(char* to, std::size_t stride, std::size_t bytes) const {
    PeerParts parts{.bytes = static_cast<std::int64_t>(bytes)};
    bool whole = bytes % 16 == 0;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      char* const there = to + to_index(peer) * stride;
      whole = whole && reinterpret_cast<std::uintptr_t>(there) % 16 == 0;
      parts.parts[parts.count] = memory_->arrived(peer);
      parts.to[parts.count++] = there;
    }
    if (whole && parts.count > 1) return check("all_gather", place_parts(parts, caller_.handle()));
    for (int i = 0; i < parts.count; ++i) copy(parts.to[i], parts.parts[i], bytes);
  }

  void copy(void* to, const void* from, std::size_t bytes) const {
    const cudaError_t result = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                                               static_cast<cudaStream_t>(caller_.handle()));
    check("all_gather", result == cudaSuccess ? nullptr : cudaGetErrorString(result));
  }

  std::unique_ptr<Communicator> owned_;
  std::unique_ptr<PeerMemory> memory_;
  Group group_;
  bool waits_long_;
  std::size_t min_part_;  ///< bytes
  at::Device device_;
  Stream copies_;
  Stream caller_;  ///< of the last call
  Event ready_, sent_;
  bool joined_ = true;  ///< the caller's stream has waited for all copies
};

}  // namespace

std::unique_ptr<Communicator> with_peer_copies(std::unique_ptr<Communicator> inner,
                                               std::unique_ptr<PeerMemory> memory,
                                               const Group& group, bool waits_long) {
  return std::make_unique<PeerCopies>(std::move(inner), std::move(memory), group, waits_long);
}

}  // namespace dstrain::comm
