#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dstrain::kernels::cuda {

/// `bytes` from `from` to `to`, which do not overlap and which the device reaches.
struct CopyBytes {
  void* to;
  const void* from;
  std::int64_t bytes;
};
void copy_bytes(const CopyBytes& args, cudaStream_t stream);
/// Where the device reaches page-locked `host`; null: it cannot.
[[nodiscard]] void* device_pointer(void* host);

}  // namespace dstrain::kernels::cuda
