#include "engine/device/staged_copy.h"

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/host_file.h"
#include "engine/device/pinned.h"

namespace dstrain {
namespace {

using Span = std::span<std::byte>;
/// Moves bytes [offset, offset + span) of the host's side into or out of `buffer`, in a job.
using Piece = std::function<void(HostPool& pool, Bytes offset, Span buffer)>;

constexpr Bytes kMinPart = Bytes{1} << 20;  ///< worth a thread of the pool

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

void require_tensor(const at::Tensor& tensor, c10::Device device) {
  DSTRAIN_CHECK(tensor.is_contiguous() && tensor.device().type() == device.type(),
                fmt::format("a staged copy takes contiguous tensors, here on {}, and got one on {}",
                            device.str(), tensor.device().str()));
}

void require_equal(const at::Tensor& a, const at::Tensor& b) {
  DSTRAIN_CHECK(a.nbytes() == b.nbytes(),
                fmt::format("a copy of {} bytes to {}", b.nbytes(), a.nbytes()));
}

/// Calls `part` with ranges of `buffer` on the pool's threads, blocks of files whole.
void divide(HostPool& pool, Span buffer, const std::function<void(Bytes, Span)>& part) {
  const auto bytes = static_cast<Bytes>(buffer.size());
  const Bytes grain =
      std::clamp(round_up(ceil_div(bytes, pool.num_threads()), HostFile::kAlignment), kMinPart,
                 HostFile::kPiece);
  pool.parallel_for(bytes, grain, [&](Bytes begin, Bytes end) {
    part(begin, buffer.subspan(to_index(begin), to_index(end - begin)));
  });
}

Piece read_memory(const std::byte* from) {
  return [from](HostPool& pool, Bytes offset, Span buffer) {
    divide(pool, buffer,
           [&](Bytes at, Span into) { std::memcpy(into.data(), from + offset + at, into.size()); });
  };
}
Piece write_memory(std::byte* to) {
  return [to](HostPool& pool, Bytes offset, Span buffer) {
    divide(pool, buffer,
           [&](Bytes at, Span from) { std::memcpy(to + offset + at, from.data(), from.size()); });
  };
}
Piece read_file(const FilePart& part) {
  return [part](HostPool& pool, Bytes offset, Span buffer) {
    divide(pool, buffer,
           [&](Bytes at, Span into) { part.file->read(part.offset + offset + at, into); });
  };
}
Piece write_file(const FilePart& part) {
  return [part](HostPool& pool, Bytes offset, Span buffer) {
    divide(pool, buffer,
           [&](Bytes at, Span from) { part.file->write(part.offset + offset + at, from); });
  };
}

/// One copy by the GPU itself.
void copy_pinned(const Stream& stream, void* to, const void* from, std::size_t bytes) {
  const c10::cuda::CUDAGuard guard(stream.device());
  C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault,
                                 static_cast<cudaStream_t>(stream.handle())));
}

}  // namespace

struct StagedCopy::State {
  /// One of the two buffers.
  struct Slot {
    std::byte* data = nullptr;
    Event filled;  ///< by host or GPU
    Event used;    ///< what filled it has been taken out
    explicit Slot(c10::Device device) : filled(device), used(device) {}
  };

  c10::Device device;
  Bytes buffer_bytes;
  std::optional<HostWork> work;
  Stream jobs;         ///< of the host's side, so that it runs beside the GPU's copies
  Event began, ended;  ///< of a copy
  at::Tensor buffers;
  std::array<Slot, 2> slots;
  std::size_t num_pieces = 0;

  State(c10::Device on, Options options)
      : device(on),
        buffer_bytes(options.buffer_bytes),
        work(std::in_place, on, std::move(options.work)),
        jobs(Stream::from_pool(on)),
        began(on),
        ended(on),
        slots{Slot(on), Slot(on)} {
    DSTRAIN_CHECK(buffer_bytes > 0 && buffer_bytes % HostFile::kAlignment == 0,
                  fmt::format("staging buffers of {} bytes", buffer_bytes));
    if (!device.is_cuda()) return;
    buffers = host_tensor({2 * buffer_bytes}, c10::kByte, device);
    slots[0].data = bytes_of(buffers);
    slots[1].data = bytes_of(buffers) + buffer_bytes;
  }

  ~State() {
    work.reset();  // its jobs use the buffers
    // A stream that still copies keeps the buffers from everybody else for good.
    if (device.is_cuda() && !idle()) new at::Tensor(buffers);
  }

  [[nodiscard]] bool idle() const {
    try {
      return slots[0].used.query() && slots[1].used.query();
    } catch (const std::exception&) {  // the context is broken
      return false;
    }
  }

  /// Calls `step` with offset and length of each piece and its slot.
  void for_pieces(std::size_t bytes, const std::function<void(Bytes, Bytes, Slot&)>& step) {
    const auto end = static_cast<Bytes>(bytes);
    for (Bytes offset = 0; offset < end; offset += buffer_bytes)
      step(offset, std::min(buffer_bytes, end - offset), slots[num_pieces++ % 2]);
  }

  void to_device(const Stream& stream, std::byte* to, std::size_t bytes, const Piece& read) {
    if (!device.is_cuda()) return inline_job(to, bytes, read);
    began.record(stream);
    began.wait(jobs);
    for_pieces(bytes, [&](Bytes offset, Bytes length, Slot& slot) {
      slot.used.wait(jobs);
      work->enqueue(jobs, [read, offset, length, data = slot.data](HostPool& pool) {
        read(pool, offset, {data, to_index(length)});
      });
      slot.filled.record(jobs);
      slot.filled.wait(stream);
      copy_pinned(stream, to + offset, slot.data, to_index(length));
      slot.used.record(stream);
    });
  }

  void to_host(const Stream& stream, std::byte* from, std::size_t bytes, const Piece& write) {
    if (!device.is_cuda()) return inline_job(from, bytes, write);
    for_pieces(bytes, [&](Bytes offset, Bytes length, Slot& slot) {
      slot.used.wait(stream);
      copy_pinned(stream, slot.data, from + offset, to_index(length));
      slot.filled.record(stream);
      slot.filled.wait(jobs);
      work->enqueue(jobs, [write, offset, length, data = slot.data](HostPool& pool) {
        write(pool, offset, {data, to_index(length)});
      });
      slot.used.record(jobs);
    });
    ended.record(jobs);
    ended.wait(stream);
  }

  void inline_job(std::byte* data, std::size_t bytes, const Piece& piece) {
    work->enqueue(jobs, [&](HostPool& pool) { piece(pool, 0, {data, bytes}); });
  }
};

StagedCopy::StagedCopy(c10::Device device, Options options)
    : state_(std::make_unique<State>(device, std::move(options))) {}
StagedCopy::~StagedCopy() = default;

void StagedCopy::to_device(const Stream& stream, const at::Tensor& destination,
                           const at::Tensor& source) {
  require_tensor(destination, state_->device);
  require_tensor(source, c10::kCPU);
  require_equal(destination, source);
  if (source.nbytes() == 0 || failed()) return;
  if (state_->device.is_cuda() && source.is_pinned())
    return copy_pinned(stream, bytes_of(destination), bytes_of(source), source.nbytes());
  state_->to_device(stream, bytes_of(destination), destination.nbytes(),
                    read_memory(bytes_of(source)));
}

void StagedCopy::to_device(const Stream& stream, const at::Tensor& destination, FilePart source) {
  require_tensor(destination, state_->device);
  if (destination.nbytes() == 0 || failed()) return;
  state_->to_device(stream, bytes_of(destination), destination.nbytes(), read_file(source));
}

void StagedCopy::to_host(const Stream& stream, const at::Tensor& destination,
                         const at::Tensor& source) {
  require_tensor(destination, c10::kCPU);
  require_tensor(source, state_->device);
  require_equal(destination, source);
  if (source.nbytes() == 0 || failed()) return;
  if (state_->device.is_cuda() && destination.is_pinned())
    return copy_pinned(stream, bytes_of(destination), bytes_of(source), source.nbytes());
  state_->to_host(stream, bytes_of(source), source.nbytes(), write_memory(bytes_of(destination)));
}

void StagedCopy::to_host(const Stream& stream, FilePart destination, const at::Tensor& source) {
  require_tensor(source, state_->device);
  if (source.nbytes() == 0 || failed()) return;
  state_->to_host(stream, bytes_of(source), source.nbytes(), write_file(destination));
}

bool StagedCopy::failed() const { return state_->work->failed(); }
void StagedCopy::rethrow() const { state_->work->rethrow(); }

}  // namespace dstrain
