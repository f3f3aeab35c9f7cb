#include <cuda_runtime.h>

#include <string>

#include "engine/base/error.h"
#include "engine/kernels/image/resize_pass.h"

namespace dstrain::kernels::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kChannels = 3;

/// blockIdx.y is the image. Neighbouring threads write neighbouring pixels.
__global__ void __launch_bounds__(kBlock) resize_kernel(const ResizePass* passes) {
  const ResizePass a = passes[blockIdx.y];
  const int output = static_cast<int>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x);
  if (output >= a.lines * a.count) return;
  const bool along = a.to_step == kChannels;
  const int inner = along ? a.count : a.lines;
  const int i = along ? output % inner : output / inner;
  const int line = along ? output / inner : output % inner;
  constexpr std::int32_t kHalf = 1 << (kResizeWeightBits - 1);
  std::int32_t sums[kChannels] = {kHalf, kHalf, kHalf};
  const std::uint8_t* from = a.from + line * a.from_line + a.first[i] * a.from_step;
  for (int tap = a.begin[i]; tap < a.begin[i + 1]; ++tap, from += a.from_step) {
    const std::int32_t weight = a.weights[tap];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) sums[c] += weight * from[c];
  }
  std::uint8_t* to = a.to + line * a.to_line + i * a.to_step;
#pragma unroll
  for (int c = 0; c < kChannels; ++c)
    to[c] = static_cast<std::uint8_t>(min(max(sums[c] >> kResizeWeightBits, 0), 255));
}

}  // namespace

void resize_passes(std::span<const ResizePass> passes, std::int64_t max_outputs, void* stream) {
  if (passes.empty() || max_outputs == 0) return;
  const dim3 grid(static_cast<unsigned>((max_outputs + kBlock - 1) / kBlock),
                  static_cast<unsigned>(passes.size()));
  resize_kernel<<<grid, kBlock, 0, static_cast<cudaStream_t>(stream)>>>(passes.data());
  const cudaError_t error = cudaGetLastError();
  DSTRAIN_CHECK(error == cudaSuccess, std::string("resize: ") + cudaGetErrorString(error));
}

}  // namespace dstrain::kernels::cuda
