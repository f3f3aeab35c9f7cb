#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "engine/comm/peer_kernels.h"

namespace dstrain::comm {
namespace {

/// Grid of kernels that read and write memory.
constexpr int kThreads = 512, kMaxBlocks = 132 * 4;

template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T of[kSize];
};

/// Elements from 16 * packs bytes on are added one by one.
template <class T>
__global__ void __launch_bounds__(kThreads) add_parts_kernel(PeerSum args, std::int64_t packs) {
  constexpr int kSize = Pack<T>::kSize;
  const std::int64_t thread = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = thread; i < packs; i += threads) {
    float sums[kSize] = {};
    for (int part = 0; part < args.count; ++part) {
      const Pack<T> x = static_cast<const Pack<T>*>(args.parts[part])[i];
#pragma unroll
      for (int k = 0; k < kSize; ++k) sums[k] += static_cast<float>(x.of[k]);
    }
    Pack<T> out;
#pragma unroll
    for (int k = 0; k < kSize; ++k) out.of[k] = static_cast<T>(sums[k]);
    static_cast<Pack<T>*>(args.sum)[i] = out;
  }
  for (std::int64_t i = packs * kSize + thread; i < args.n; i += threads) {
    float sum = 0;
    for (int part = 0; part < args.count; ++part)
      sum += static_cast<float>(static_cast<const T*>(args.parts[part])[i]);
    static_cast<T*>(args.sum)[i] = static_cast<T>(sum);
  }
}

template <class T>
void launch(const PeerSum& args, cudaStream_t stream) {
  const auto whole = [](const void* x) {
    return reinterpret_cast<std::uintptr_t>(x) % sizeof(Pack<T>) == 0;
  };
  const bool aligned = whole(args.sum) && std::all_of(args.parts, args.parts + args.count, whole);
  const std::int64_t packs = aligned ? args.n / Pack<T>::kSize : 0;
  const std::int64_t work = std::max(packs, args.n - packs * Pack<T>::kSize);
  const auto blocks =
      static_cast<int>(std::min<std::int64_t>((work + kThreads - 1) / kThreads, kMaxBlocks));
  add_parts_kernel<T><<<blocks, kThreads, 0, stream>>>(args, packs);
}

__global__ void __launch_bounds__(kThreads) place_parts_kernel(PeerParts args) {
  const std::int64_t packs = args.bytes / std::int64_t{sizeof(uint4)};
  const auto* from = static_cast<const uint4*>(args.parts[blockIdx.y]);
  auto* to = static_cast<uint4*>(args.to[blockIdx.y]);
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < packs;
       i += std::int64_t{gridDim.x} * blockDim.x)
    to[i] = from[i];
}

constexpr int kWarp = 32;
static_assert(kMaxPeers <= kWarp);

__global__ void __launch_bounds__(kWarp) await_words_kernel(std::uint32_t* words, int count) {
  if (static_cast<int>(threadIdx.x) >= count) return;
  std::uint32_t* const word = words + threadIdx.x;
  std::uint32_t value = 0;
  // What a peer wrote before the word is seen by all work behind this.
  do {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  } while (value == 0);
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(0) : "memory");
}

__global__ void __launch_bounds__(kWarp) write_words_kernel(PeerWords args) {
  if (static_cast<int>(threadIdx.x) >= args.count) return;
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(args.words[threadIdx.x]), "r"(1)
               : "memory");
}

const char* last_error() {
  const cudaError_t result = cudaGetLastError();
  return result == cudaSuccess ? nullptr : cudaGetErrorString(result);
}

}  // namespace

const char* await_words(std::uint32_t* words, int count, void* stream) {
  await_words_kernel<<<1, kWarp, 0, static_cast<cudaStream_t>(stream)>>>(words, count);
  return last_error();
}

const char* write_words(const PeerWords& args, void* stream) {
  write_words_kernel<<<1, kWarp, 0, static_cast<cudaStream_t>(stream)>>>(args);
  return last_error();
}

const char* place_parts(const PeerParts& args, void* stream) {
  const std::int64_t packs = args.bytes / std::int64_t{sizeof(uint4)};
  const auto blocks = static_cast<unsigned>(
      std::clamp<std::int64_t>((packs + kThreads - 1) / kThreads, 1, kMaxBlocks / args.count));
  place_parts_kernel<<<dim3(blocks, static_cast<unsigned>(args.count)), kThreads, 0,
                       static_cast<cudaStream_t>(stream)>>>(args);
  return last_error();
}

const char* add_parts(const PeerSum& args, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  switch (args.type) {
    case SumType::fp32:
      launch<float>(args, on);
      break;
    case SumType::bf16:
      launch<__nv_bfloat16>(args, on);
      break;
    case SumType::fp16:
      launch<__half>(args, on);
      break;
  }
  return last_error();
}

}  // namespace dstrain::comm
