#include "engine/base/philox.h"
#include "engine/kernels/activation/drop_draw.h"
#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/device.cuh"

namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;
/// A block makes the key first, which takes as long as a pack.
constexpr int kPacksPerThread = 4;

/// Eight elements, which are a counter of Philox unless rows stand elsewhere in a larger tensor and
/// do not begin with a pack.
template <typename T>
__device__ __forceinline__ void drop_pack(const Dropout& a, std::uint64_t key, const DropDraw& draw,
                                          std::int64_t pack) {
  static_assert(kPack == DropDraw::kElements);
  const std::int64_t first = pack * kPack;
  const bool whole = first + kPack <= a.count;
  float x[kPack];
  if (whole) load<T, kPack>(a.x, pack).unpack(x);
  float kept[kPack];
  if (a.in_packs(kPack)) {
    const Philox words =
        DropDraw::words_of(key, static_cast<std::uint64_t>(a.whole(first) / kPack));
#pragma unroll
    for (int i = 0; i < kPack; ++i) kept[i] = draw.factor_of(words, i);
  } else {
    for (int i = 0; i < kPack && first + i < a.count; ++i) {
      const std::int64_t element = a.whole(first + i);
      const Philox words = DropDraw::words_of(key, static_cast<std::uint64_t>(element / kPack));
      kept[i] = draw.factor_of(words, static_cast<int>(element % kPack));
    }
  }
  if (whole) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) x[i] = kept[i] > 0 ? x[i] * kept[i] : 0.0f;
    store(a.y, pack, Pack<T>::of(x));
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) {  // the last pack is not whole
    if (first + i >= a.count) break;
    const float value = to_float(static_cast<const T*>(a.x)[first + i]);
    static_cast<T*>(a.y)[first + i] = from_float<T>(kept[i] > 0 ? value * kept[i] : 0.0f);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) dropout_kernel(const Dropout a) {
  // Read here, so that a recorded graph serves steps of other seeds.
  __shared__ std::uint64_t key;
  if (threadIdx.x == 0) key = dropout_key(static_cast<std::uint64_t>(*a.seed), a.place);
  __syncthreads();
  const std::uint64_t own_key = key;
  const DropDraw draw = DropDraw::of(a.share);
  const std::int64_t packs = (a.count + kPack - 1) / kPack,
                     step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       pack < packs; pack += step)
    drop_pack<T>(a, own_key, draw, pack);
}

}  // namespace

void dropout(const Dropout& args, cudaStream_t stream) {
  if (args.count == 0) return;
  with_type(args.dtype, [&](auto zero) {
    dropout_kernel<decltype(zero)>
        <<<blocks_for(args.count, kThreads * kPack * kPacksPerThread), kThreads, 0, stream>>>(args);
  });
  check_launch("dropout");
}

}  // namespace dstrain::kernels::cuda
