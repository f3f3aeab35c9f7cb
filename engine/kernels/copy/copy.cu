#include <algorithm>

#include "engine/kernels/copy/kernels.h"
#include "engine/kernels/device.cuh"

namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 512;
/// A link of 50 GB/s that answers in 2 us needs 100 kB under way: 8 kB of each block, at least.
constexpr std::int64_t kMaxBlocks = 24;

/// Several loads of a thread are under way at once, as each takes as long as the link.
template <class Word>
__global__ void __launch_bounds__(kThreads) copy_words_kernel(const CopyBytes a) {
  constexpr int kEach = 4;
  const std::int64_t words = a.bytes / static_cast<std::int64_t>(sizeof(Word));
  const auto* from = static_cast<const Word*>(a.from);
  auto* to = static_cast<Word*>(a.to);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + (kEach - 1) * step < words; i += kEach * step) {
    Word held[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) held[k] = from[i + k * step];
#pragma unroll
    for (int k = 0; k < kEach; ++k) to[i + k * step] = held[k];
  }
  for (; i < words; i += step) to[i] = from[i];
  const std::int64_t rest = a.bytes % static_cast<std::int64_t>(sizeof(Word));
  if (blockIdx.x == 0 && threadIdx.x < rest) {
    const std::int64_t byte = a.bytes - rest + threadIdx.x;
    static_cast<char*>(a.to)[byte] = static_cast<const char*>(a.from)[byte];
  }
}

template <class Word>
bool aligned(const CopyBytes& a) {
  return (reinterpret_cast<std::uintptr_t>(a.to) | reinterpret_cast<std::uintptr_t>(a.from)) %
             sizeof(Word) ==
         0;
}

template <class Word>
void launch(const CopyBytes& a, cudaStream_t stream) {
  const auto blocks =
      std::clamp<std::int64_t>(blocks_for(a.bytes, kThreads * sizeof(Word)), 1, kMaxBlocks);
  copy_words_kernel<Word><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(a);
  check_launch("copy_bytes");
}

}  // namespace

void copy_bytes(const CopyBytes& args, cudaStream_t stream) {
  if (args.bytes == 0) return;
  if (aligned<uint4>(args)) return launch<uint4>(args, stream);
  if (aligned<unsigned>(args)) return launch<unsigned>(args, stream);
  launch<char>(args, stream);
}

void* device_pointer(void* host) {
  void* device = nullptr;
  if (cudaHostGetDevicePointer(&device, host, 0) == cudaSuccess) return device;
  (void)cudaGetLastError();
  return nullptr;
}

}  // namespace dstrain::kernels::cuda
