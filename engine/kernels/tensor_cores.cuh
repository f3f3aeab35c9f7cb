#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "engine/kernels/device.cuh"
#include "engine/kernels/gpu.h"

/// Products of 16 x 16 tiles by a warp (PTX ISA, "mma.m16n8k16", "ldmatrix", "movmatrix"), 16-bit
/// operands and sums in fp32. A lane holds of a tile's rows `row` and row + 8 the columns column,
/// column + 1 of every 8. Compute capability 7.5 multiplies fp16 by two halves of the depth, and no
/// bf16.
namespace dstrain::kernels::cuda {

inline constexpr int kTile = 16;

/// Where a lane's part of a tile lies.
struct Lane {
  int index = static_cast<int>(threadIdx.x) % kWarp;
  int warp = static_cast<int>(threadIdx.x) / kWarp;
  int row = index / 4;
  int column = index % 4 * 2;
};

template <typename T>
__device__ std::uint32_t pair_at(const T* from) {
  return *reinterpret_cast<const std::uint32_t*>(from);
}

template <typename T>
__device__ std::uint32_t pack_pair(float low, float high);
template <>
__device__ inline std::uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
template <>
__device__ inline std::uint32_t pack_pair<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

template <typename T>
__device__ float2 unpack_pair(std::uint32_t pair);
template <>
__device__ inline float2 unpack_pair<__nv_bfloat16>(std::uint32_t pair) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}
template <>
__device__ inline float2 unpack_pair<__half>(std::uint32_t pair) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

template <typename T>
__device__ void store_pair(T* to, float low, float high) {
  *reinterpret_cast<std::uint32_t*>(to) = pack_pair<T>(low, high);
}

__device__ inline std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

/// Four matrices [8, 8] from shared memory, each lane with the address of one of their rows.
template <bool kTransposed>
__device__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t from) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
  }
}

/// Where a lane's row of the four matrices of a tile [16, 16] lies, for load_matrices: the second
/// matrix is below the first one,
template <typename T>
__device__ std::uint32_t matrices_by_rows(const T* tile, int pitch) {
  const int i = static_cast<int>(threadIdx.x) % kWarp;
  return shared_address(tile + (i / 8 % 2 * 8 + i % 8) * pitch + i / 16 * 8);
}
/// or beside it.
template <typename T>
__device__ std::uint32_t matrices_by_columns(const T* tile, int pitch) {
  const int i = static_cast<int>(threadIdx.x) % kWarp;
  return shared_address(tile + (i / 16 * 8 + i % 8) * pitch + i / 8 % 2 * 8);
}

/// The transposed matrix [8, 8] of 16-bit elements that a warp holds.
__device__ inline std::uint32_t transposed(std::uint32_t pair) {
  std::uint32_t to;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pair));
  return to;
}

/// The left operand, [16, 16].
struct Left {
  std::uint32_t value[4];

  /// The tile from `tile` on, in shared memory.
  template <typename T>
  __device__ static Left of_rows(const T* tile, int pitch) {
    Left left;
    load_matrices<false>(left.value, matrices_by_rows(tile, pitch));
    return left;
  }

  /// Its rows are the 16 columns from `tile` on.
  template <typename T>
  __device__ static Left of_columns(const T* tile, int pitch) {
    Left left;
    load_matrices<true>(left.value, matrices_by_columns(tile, pitch));
    return left;
  }

  /// Takes sums [16, 16] as multiply_add leaves them.
  template <typename T>
  __device__ static Left of(const float (&sums)[2][4]) {
    return {{pack_pair<T>(sums[0][0], sums[0][1]), pack_pair<T>(sums[0][2], sums[0][3]),
             pack_pair<T>(sums[1][0], sums[1][1]), pack_pair<T>(sums[1][2], sums[1][3])}};
  }
};

/// Eight columns of a right operand [16, 16].
struct RightHalf {
  std::uint32_t value[2];
};

/// The right operand from shared memory.
struct Right {
  std::uint32_t value[4];

  [[nodiscard]] __device__ RightHalf first() const { return {{value[0], value[1]}}; }
  [[nodiscard]] __device__ RightHalf second() const { return {{value[2], value[3]}}; }

  /// Its columns are the 16 rows from `tile` on.
  template <typename T>
  __device__ static Right of_rows(const T* tile, int pitch) {
    Right right;
    load_matrices<false>(right.value, matrices_by_columns(tile, pitch));
    return right;
  }

  /// Its rows are the 16 rows from `tile` on.
  template <typename T>
  __device__ static Right of_columns(const T* tile, int pitch) {
    Right right;
    load_matrices<true>(right.value, matrices_by_rows(tile, pitch));
    return right;
  }
};

template <typename T>
__device__ void multiply_add(float (&sums)[4], const Left& left, const RightHalf& right);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <>
__device__ inline void multiply_add<__nv_bfloat16>(float (&sums)[4], const Left& left,
                                                   const RightHalf& right) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left.value[0]), "r"(left.value[1]), "r"(left.value[2]), "r"(left.value[3]),
        "r"(right.value[0]), "r"(right.value[1]));
}
template <>
__device__ inline void multiply_add<__half>(float (&sums)[4], const Left& left,
                                            const RightHalf& right) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left.value[0]), "r"(left.value[1]), "r"(left.value[2]), "r"(left.value[3]),
        "r"(right.value[0]), "r"(right.value[1]));
}
#else
/// No launch comes here: check_products refuses it.
template <>
__device__ inline void multiply_add<__nv_bfloat16>(float (&)[4], const Left&, const RightHalf&) {
  __trap();
}
template <>
__device__ inline void multiply_add<__half>(float (&sums)[4], const Left& left,
                                            const RightHalf& right) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left.value[2 * half]), "r"(left.value[2 * half + 1]), "r"(right.value[half]));
  }
}
#endif

/// Error{internal} with the kernel's `name` where the GPU's tensor cores do not multiply `dtype`.
inline void check_products(const char* name, DType dtype) {
  if (dtype == DType::bf16 && !gpu_limits().bf16_products)
    throw Error(ErrorKind::internal,
                std::string(name) + ": this GPU's tensor cores do not multiply bf16", "fp16 works");
}

/// Over the four lanes that hold a row.
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

}  // namespace dstrain::kernels::cuda
