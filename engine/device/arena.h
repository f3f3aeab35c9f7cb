#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/units.h"

namespace at {
class Tensor;
}

namespace dstrain {

enum class HostMemory {
  pinned,    ///< page-locked, which a GPU reads and writes itself; as pageable for the CPU
  pageable,  ///< ordinary memory
};

/// Host memory of an exact size for tensors: zeroed, resident and in huge pages where the kernel
/// gives them, near the GPU where its NUMA node is known. LibTorch's pinned allocator rounds up to
/// powers of two and touches with one thread. A value: copies and tensors share the memory, which
/// goes with the last of them.
class HostArena {
 public:
  struct Options {
    HostMemory kind = HostMemory::pageable;
    c10::Device device{c10::kCPU};  ///< that `pinned` is for
    std::string pci_bus = {};       ///< of the GPU (DeviceFacts); empty: any NUMA node
    std::string what = {};          ///< "optimizer states": the contents, for errors
  };

  /// Nothing.
  HostArena() = default;
  /// Waits until all memory is touched and locked. Error{internal} that begins as
  /// host_memory_error() with bytes, cause and cure when the host lacks that much, or the
  /// system or the driver refuses; nothing is held then.
  HostArena(Bytes bytes, const Options& options);

  [[nodiscard]] Bytes size() const;
  /// Page-locked for the GPU.
  [[nodiscard]] bool pinned() const;
  [[nodiscard]] std::byte* data() const;

  /// `count` elements from byte `offset` on, which must be a multiple of the element's size. A 1-d
  /// tensor that keeps the memory alive.
  [[nodiscard]] at::Tensor tensor(c10::ScalarType dtype, std::int64_t count,
                                  Bytes offset = 0) const;

 private:
  struct Mapping;
  std::shared_ptr<const Mapping> mapping_;
};

}  // namespace dstrain
