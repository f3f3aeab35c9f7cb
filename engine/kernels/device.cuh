#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "engine/base/error.h"
#include "engine/kernels/dtype.h"

/// What the kernels share: eight elements at a time, sums over warps and blocks, dispatch over
/// dtypes.
namespace dstrain::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kPack =
    8;  ///< elements that a thread moves at once: 16 bytes of a 16-bit type

inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    throw Error(ErrorKind::internal, std::string("kernel ") + kernel +
                                         " was not launched: " + cudaGetErrorString(error));
  }
}

/// Calls `body` with a value of the element type, of which only the type counts.
template <typename Body>
void with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::bf16:
      return body(__nv_bfloat16{});
    case DType::f16:
      return body(__half{});
  }
}

inline unsigned blocks_for(std::int64_t work, std::int64_t per_block) {
  return static_cast<unsigned>((work + per_block - 1) / per_block);
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <typename T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

/// Two neighbouring numbers of a 16-bit type, which one instruction takes.
template <typename T>
using TwoOf = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

/// N elements in registers, moved in words of up to 16 bytes.
template <typename T, int N = kPack>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T value[N];

  __device__ void unpack(float (&out)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = to_float(value[i]);
  }
  __device__ static Pack of(const float (&in)[N]) {
    Pack pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.value[i] = from_float<T>(in[i]);
    return pack;
  }
};

/// Loads and stores through plain words, so that the compiler issues wide accesses whatever T is.
template <typename T, int N>
__device__ Pack<T, N> load(const void* base, std::int64_t pack_index) {
  constexpr int kBytes = sizeof(T) * N;
  Pack<T, N> pack;
  if constexpr (kBytes % 16 == 0) {
    const uint4* from = static_cast<const uint4*>(base) + pack_index * (kBytes / 16);
    uint4* to = reinterpret_cast<uint4*>(&pack);
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) to[i] = from[i];
  } else {
    pack = static_cast<const Pack<T, N>*>(base)[pack_index];
  }
  return pack;
}

template <typename T, int N>
__device__ void store(void* base, std::int64_t pack_index, const Pack<T, N>& pack) {
  constexpr int kBytes = sizeof(T) * N;
  if constexpr (kBytes % 16 == 0) {
    uint4* to = static_cast<uint4*>(base) + pack_index * (kBytes / 16);
    const uint4* from = reinterpret_cast<const uint4*>(&pack);
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) to[i] = from[i];
  } else {
    static_cast<Pack<T, N>*>(base)[pack_index] = pack;
  }
}

inline constexpr float kLog2E = 1.4426950408889634f;

/// 2^x by the processor's approximation, 0 where that is below 2^-126.
__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x by the processor's approximation; x is normal, or infinite.
__device__ inline float reciprocal_of(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Every lane gets the sum; the butterfly has one order.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

/// Every thread gets the sum over the block, whose size is a multiple of 32. `shared` [32] may be
/// used again at once.
__device__ inline float block_sum(float x, float* shared) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  x = warp_sum(x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = warp_sum(lane < warps ? shared[lane] : 0.0f);
  __syncthreads();
  return x;
}

__device__ inline float block_max(float x, float* shared) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  x = warp_max(x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = warp_max(shared[lane < warps ? lane : 0]);
  __syncthreads();
  return x;
}

/// first[c] (c < split) and second[c - split] (others) += sum over rows of partial [rows, cols], in
/// row order per thread.
void add_partials(const float* partial, std::int64_t rows, std::int64_t cols, float* first,
                  float* second, std::int64_t split, cudaStream_t stream);

}  // namespace dstrain::kernels::cuda
