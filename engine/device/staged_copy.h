#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "engine/base/units.h"
#include "engine/device/host_work.h"
#include "engine/device/stream.h"

namespace at {
class Tensor;
}

namespace dstrain {

class HostFile;

/// A place in a file.
struct FilePart {
  HostFile* file = nullptr;
  Bytes offset = 0;
};

/// Copies in stream order between device tensors and host memory that a GPU cannot reach at speed:
/// pageable tensors and files travel through two pinned buffers, so that the GPU copies one piece
/// while the host reads or writes the next. Page-locked tensors take one asynchronous copy. On the
/// CPU the copy is done when the call returns.
///
/// Copies of one object take turns at its buffers: one object per direction and lane. All tensors
/// are contiguous, and as long as each other in bytes; tensors on the host and files are kept by
/// the caller until the copy is done, those on the device as with any other work on the stream.
class StagedCopy {
 public:
  struct Options {
    Bytes buffer_bytes = Bytes{32} << 20;  ///< of each of the two; a multiple of 4096
    HostWork::Options work = {};
  };

  StagedCopy(c10::Device device, Options options);
  ~StagedCopy();
  StagedCopy(const StagedCopy&) = delete;
  StagedCopy& operator=(const StagedCopy&) = delete;

  /// The source is read after what stands before it on `stream`.
  void to_device(const Stream& stream, const at::Tensor& destination, const at::Tensor& source);
  void to_device(const Stream& stream, const at::Tensor& destination, FilePart source);
  /// What is enqueued on `stream` later comes after the last byte is written.
  void to_host(const Stream& stream, const at::Tensor& destination, const at::Tensor& source);
  void to_host(const Stream& stream, FilePart destination, const at::Tensor& source);

  /// A read or write that failed (HostWork); later copies then do nothing.
  [[nodiscard]] bool failed() const;
  void rethrow() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dstrain
