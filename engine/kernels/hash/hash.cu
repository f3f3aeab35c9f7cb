#include <algorithm>

#include "engine/kernels/device.cuh"
#include "engine/kernels/hash/hash_math.h"
#include "engine/kernels/hash/kernels.h"

namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 132 * 8;
constexpr std::int64_t kWord = sizeof(std::uint64_t);

/// `sum` of all threads of the block, added once. Integers: the order of atomics changes no bit.
__device__ void add_to_hash(std::uint64_t sum, std::uint64_t* hash) {
  __shared__ std::uint64_t of_warp[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    sum += __shfl_down_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / kWarp; ++warp) sum += of_warp[warp];
  atomicAdd(reinterpret_cast<unsigned long long*>(hash), static_cast<unsigned long long>(sum));
}

/// The bytes of word `i` that x has.
__device__ std::uint64_t word_of_halves(const AddWords& a, std::int64_t i) {
  const auto* halves = static_cast<const std::uint16_t*>(a.x);
  std::uint64_t word = 0;
  for (int k = 0; k < 4; ++k) {
    const std::int64_t at = 4 * i + k;
    if (2 * at < a.bytes) word |= static_cast<std::uint64_t>(halves[at]) << (16 * k);
  }
  return word;
}

/// kVector: x is aligned to 16 bytes.
template <bool kVector>
__global__ void __launch_bounds__(kThreads) add_words_kernel(const AddWords a) {
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::uint64_t sum = 0;
  std::int64_t done = 0;  // words
  if constexpr (kVector) {
    const std::int64_t pairs = a.bytes / (2 * kWord);
    const auto* x = static_cast<const ulonglong2*>(a.x);
#pragma unroll 4
    for (std::int64_t i = start; i < pairs; i += step) {
      const ulonglong2 two = x[i];
      sum += mixed_word(two.x, a.first + 2 * i) + mixed_word(two.y, a.first + 2 * i + 1);
    }
    done = 2 * pairs;
  }
  const std::int64_t words = (a.bytes + kWord - 1) / kWord;
  for (std::int64_t i = done + start; i < words; i += step)
    sum += mixed_word(word_of_halves(a, i), a.first + i);
  add_to_hash(sum, a.sum);
}

}  // namespace

void add_words(const AddWords& args, cudaStream_t stream) {
  if (args.bytes == 0) return;
  const bool vector = reinterpret_cast<std::uintptr_t>(args.x) % (2 * kWord) == 0;
  constexpr std::int64_t kEach = 8;  // words of a thread, at least
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(kMaxBlocks, blocks_for(args.bytes, kThreads * kEach * kWord)));
  if (vector) {
    add_words_kernel<true><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    add_words_kernel<false><<<blocks, kThreads, 0, stream>>>(args);
  }
  check_launch("add_words");
}

}  // namespace dstrain::kernels::cuda
