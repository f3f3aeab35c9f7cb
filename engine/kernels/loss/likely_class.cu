#include <algorithm>
#include <cfloat>
#include <climits>

#include "engine/kernels/device.cuh"
#include "engine/kernels/loss/kernels.h"

/// The likely class of each row: logits are read once, sums in fp32.
namespace dstrain::kernels {
namespace {

constexpr int kThreads = 512;

}  // namespace

int likely_class_parts(std::int64_t rows, std::int64_t classes) {
  constexpr std::int64_t kBlocks = 256;  // fill the processors of a large GPU
  constexpr std::int64_t kClasses = kThreads * cuda::kPack;
  const std::int64_t wanted = (kBlocks + rows - 1) / std::max<std::int64_t>(rows, 1);
  return static_cast<int>(
      std::clamp<std::int64_t>(std::min(wanted, classes / kClasses), 1, cuda::kWarp));
}

namespace cuda {
namespace {

/// The largest of some logits of a row, its class, and the sum of exp(logit - largest).
struct Found {
  float max, sum;
  int best;

  __device__ static Found none() {  // finite: a logit of -inf must not make a nan
    return {.max = -FLT_MAX, .sum = 0, .best = INT_MAX};
  }
  __device__ void join(const Found& other) {
    const float top = fmaxf(max, other.max);
    sum = sum * expf(max - top) + other.sum * expf(other.max - top);
    if (other.max > max || (other.max == max && other.best < best)) best = other.best;
    max = top;
  }
};

__device__ Found of_other_lane(const Found& own, int offset) {
  return {__shfl_xor_sync(0xffffffffu, own.max, offset),
          __shfl_xor_sync(0xffffffffu, own.sum, offset),
          __shfl_xor_sync(0xffffffffu, own.best, offset)};
}

__device__ void join_warp(Found& own) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) own.join(of_other_lane(own, offset));
}

__device__ void write(const LikelyClass& a, std::int64_t row, const Found& found) {
  a.best[row] = found.best < a.classes ? found.best : 0;
  a.logarithm[row] = -logf(found.sum);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) likely_class_kernel(const LikelyClass a) {
  __shared__ Found shared[kThreads / kWarp];
  const std::int64_t row = blockIdx.x, part = blockIdx.y;
  const T* logits = static_cast<const T*>(a.logits) + row * a.classes;
  // Rows begin anywhere: classes in front of the first whole pack, packs, classes behind the last.
  const auto misplaced =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(logits) / sizeof(T) % kPack);
  const std::int64_t lead = min(misplaced == 0 ? 0 : kPack - misplaced, a.classes);
  const std::int64_t packs = (a.classes - lead) / kPack;
  const std::int64_t first = packs * part / a.parts, end = packs * (part + 1) / a.parts;
  Found own = Found::none();
  for (std::int64_t pack = first + threadIdx.x; pack < end; pack += kThreads) {
    float x[kPack];
    load<T, kPack>(logits + lead, pack).unpack(x);
    float max = x[0];
    int at = 0;
#pragma unroll
    for (int i = 1; i < kPack; ++i) {
      if (x[i] > max) at = i;
      max = fmaxf(max, x[i]);
    }
    if (max > own.max) {  // this thread's classes ascend, so the lower of equals stays
      own.sum *= expf(own.max - max);
      own.max = max;
      own.best = static_cast<int>(lead + pack * kPack) + at;
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) own.sum += expf(x[i] - own.max);
  }
  const auto add_class = [&](std::int64_t i) {
    const float x = to_float(logits[i]);
    own.join({.max = fmaxf(x, -FLT_MAX),
              .sum = isnan(x)        ? x
                     : x >= -FLT_MAX ? 1.0f
                                     : 0.0f,
              .best = static_cast<int>(i)});
  };
  if (part == 0 && threadIdx.x < lead) add_class(threadIdx.x);
  const std::int64_t last = lead + packs * kPack + threadIdx.x;
  if (part == a.parts - 1 && last < a.classes) add_class(last);
  join_warp(own);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  own = threadIdx.x < kThreads / kWarp ? shared[threadIdx.x] : Found::none();
  join_warp(own);
  if (threadIdx.x != 0) return;
  if (a.parts == 1) return write(a, row, own);
  float* scratch = a.scratch + (row * a.parts + part) * kLikelyClassColumns;
  scratch[0] = own.max;
  scratch[1] = own.sum;
  scratch[2] = __int_as_float(own.best);
}

__global__ void __launch_bounds__(kWarp) join_parts_kernel(const LikelyClass a) {
  const std::int64_t row = blockIdx.x;
  const int part = static_cast<int>(threadIdx.x);
  Found own = Found::none();
  if (part < a.parts) {
    const float* scratch = a.scratch + (row * a.parts + part) * kLikelyClassColumns;
    own = {.max = scratch[0], .sum = scratch[1], .best = __float_as_int(scratch[2])};
  }
  join_warp(own);
  if (part == 0) write(a, row, own);
}

}  // namespace

void likely_class(const LikelyClass& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  with_type(args.dtype, [&](auto zero) {
    const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.parts));
    likely_class_kernel<decltype(zero)><<<grid, kThreads, 0, stream>>>(args);
  });
  check_launch("likely_class");
  if (args.parts == 1) return;
  join_parts_kernel<<<static_cast<unsigned>(args.rows), kWarp, 0, stream>>>(args);
  check_launch("likely_class parts");
}

}  // namespace cuda
}  // namespace dstrain::kernels
