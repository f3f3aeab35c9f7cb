#include "engine/base/philox.h"
#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/device.cuh"

namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread has eight elements, which are two counters of Philox, unless rows stand elsewhere in a
/// larger tensor and do not begin with a pack.
template <typename T>
__global__ void __launch_bounds__(kThreads) dropout_kernel(const Dropout a) {
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t first = pack * kPack;
  // Read here, so that a recorded graph serves steps of other seeds.
  __shared__ std::uint64_t key;
  if (threadIdx.x == 0) key = dropout_key(static_cast<std::uint64_t>(*a.seed), a.place);
  __syncthreads();
  if (first >= a.count) return;
  const float factor = 1.0f / (1.0f - a.share);
  float kept[kPack];
  if (a.in_packs(kPack)) {
    const std::int64_t counter = a.whole(first) / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Philox words = Philox::at(key, 0, static_cast<std::uint64_t>(counter + half));
#pragma unroll
      for (int i = 0; i < 4; ++i) kept[4 * half + i] = words.uniform(i) >= a.share ? factor : 0.0f;
    }
  } else {
    for (int i = 0; i < kPack && first + i < a.count; ++i) {
      const std::int64_t element = a.whole(first + i);
      const Philox words = Philox::at(key, 0, static_cast<std::uint64_t>(element / 4));
      kept[i] = words.uniform(static_cast<int>(element % 4)) >= a.share ? factor : 0.0f;
    }
  }
  if (first + kPack <= a.count) {
    float x[kPack];
    load<T, kPack>(a.x, pack).unpack(x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) x[i] = kept[i] > 0 ? x[i] * kept[i] : 0.0f;
    store(a.y, pack, Pack<T>::of(x));
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) {  // the last pack is not whole
    if (first + i >= a.count) break;
    const float x = to_float(static_cast<const T*>(a.x)[first + i]);
    static_cast<T*>(a.y)[first + i] = from_float<T>(kept[i] > 0 ? x * kept[i] : 0.0f);
  }
}

}  // namespace

void dropout(const Dropout& args, cudaStream_t stream) {
  if (args.count == 0) return;
  with_type(args.dtype, [&](auto zero) {
    dropout_kernel<decltype(zero)>
        <<<blocks_for(args.count, kThreads * kPack), kThreads, 0, stream>>>(args);
  });
  check_launch("dropout");
}

}  // namespace dstrain::kernels::cuda
