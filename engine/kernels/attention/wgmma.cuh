#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "engine/kernels/tensor_cores.cuh"

/// Products of 64 rows by a warpgroup of four warps (PTX ISA, "wgmma.mma_async"), for code of
/// sm_90a: the left operand from registers, the right one from shared memory, sums in fp32. Warp w
/// holds rows 16 w to 16 w + 15 as in tensor_cores.cuh. Products run on while the warps do; their
/// registers are free, and their sums valid, after wait().
namespace dstrain::kernels::cuda::wgmma {

/// The right operand lies in shared memory as matrices of 8 rows by kBytes, 32 or 128, aligned to
/// their size. Of row r, pieces of 16 bytes lie swizzled: piece i at i xor r / 4, or at i xor r.
/// `next_rows`: bytes from such a matrix to the one with the next eight rows; `next_bytes`: to the
/// one with the next kBytes of the same rows, which matters where rows are summed over. (PTX ISA,
/// "Matrix descriptor", 32-byte and 128-byte swizzling.)
template <int kBytes>
__device__ std::uint64_t operand(std::uint32_t address, int next_bytes, int next_rows) {
  static_assert(kBytes == 32 || kBytes == 128);
  return (address & 0x3ffffu) >> 4 | static_cast<std::uint64_t>(next_bytes >> 4) << 16 |
         static_cast<std::uint64_t>(next_rows >> 4) << 32 |
         static_cast<std::uint64_t>(kBytes == 128 ? 1 : 3) << 62;
}

/// The same operand, so many bytes further.
__device__ inline std::uint64_t moved(std::uint64_t operand, int bytes) {
  return operand + static_cast<std::uint64_t>(bytes >> 4);
}

/// What was written to shared memory with ordinary stores or cp.async is seen by products; before a
/// barrier.
__device__ inline void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Registers written before are seen by the products that follow.
__device__ inline void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Ends a group of products.
__device__ inline void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Until no more than kLeft groups run.
template <int kLeft>
__device__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

/// Keeps what is done with these sums on its side of a wait.
template <int kCount>
__device__ void pin(float (&sums)[kCount][4]) {
#pragma unroll
  for (auto& tile : sums) {
#pragma unroll
    for (float& x : tile) asm volatile("" : "+f"(x)::"memory");
  }
}

#define DSTRAIN_SUMS_1(i) "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
#define DSTRAIN_SUMS_2(i) DSTRAIN_SUMS_1(i), DSTRAIN_SUMS_1(i + 1)
#define DSTRAIN_SUMS_8(i) \
  DSTRAIN_SUMS_2(i), DSTRAIN_SUMS_2(i + 2), DSTRAIN_SUMS_2(i + 4), DSTRAIN_SUMS_2(i + 6)
#define DSTRAIN_SUMS_10(i) DSTRAIN_SUMS_8(i), DSTRAIN_SUMS_2(i + 8)
#define DSTRAIN_LEFT "r"(left.value[0]), "r"(left.value[1]), "r"(left.value[2]), "r"(left.value[3])

#define DSTRAIN_WGMMA_16(type)                                    \
  asm volatile(                                                   \
      "{.reg .pred add;\n setp.ne.b32 add, %13, 0;\n "            \
      "wgmma.mma_async.sync.aligned.m64n16k16.f32." type "." type \
      " {"                                                        \
      "%0, %1, %2, %3, %4, %5, %6, %7"                            \
      "}, {%8, %9, %10, %11}, %12, add, 1, 1, %14;\n}"            \
      : DSTRAIN_SUMS_2(0)                                         \
      : DSTRAIN_LEFT, "l"(right), "r"(static_cast<int>(add)), "n"(static_cast<int>(kRowsSummed)))
#define DSTRAIN_WGMMA_64(type)                                       \
  asm volatile(                                                      \
      "{.reg .pred add;\n setp.ne.b32 add, %37, 0;\n "               \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type    \
      " {"                                                           \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
      "%26, %27, %28, %29, %30, %31"                                 \
      "}, {%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}"             \
      : DSTRAIN_SUMS_8(0)                                            \
      : DSTRAIN_LEFT, "l"(right), "r"(static_cast<int>(add)), "n"(static_cast<int>(kRowsSummed)))
#define DSTRAIN_WGMMA_80(type)                                       \
  asm volatile(                                                      \
      "{.reg .pred add;\n setp.ne.b32 add, %45, 0;\n "               \
      "wgmma.mma_async.sync.aligned.m64n80k16.f32." type "." type    \
      " {"                                                           \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
      "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
      "%38, %39"                                                     \
      "}, {%40, %41, %42, %43}, %44, add, 1, 1, %46;\n}"             \
      : DSTRAIN_SUMS_10(0)                                           \
      : DSTRAIN_LEFT, "l"(right), "r"(static_cast<int>(add)), "n"(static_cast<int>(kRowsSummed)))

/// sums [64, 8 kTiles] = left [64, 16] * right, or += with `add`; kRowsSummed: the right operand's
/// rows are summed over, else they are the result's columns.
template <typename T, bool kRowsSummed, int kTiles>
__device__ void multiply(float (&sums)[kTiles][4], const Left& left, std::uint64_t right,
                         bool add) {
  static_assert(kTiles == 2 || kTiles == 8 || kTiles == 10);
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  if constexpr (kTiles == 2) {
    if constexpr (kBf16) {
      DSTRAIN_WGMMA_16("bf16");
    } else {
      DSTRAIN_WGMMA_16("f16");
    }
  } else if constexpr (kTiles == 8) {
    if constexpr (kBf16) {
      DSTRAIN_WGMMA_64("bf16");
    } else {
      DSTRAIN_WGMMA_64("f16");
    }
  } else {
    if constexpr (kBf16) {
      DSTRAIN_WGMMA_80("bf16");
    } else {
      DSTRAIN_WGMMA_80("f16");
    }
  }
}

#undef DSTRAIN_SUMS_1
#undef DSTRAIN_SUMS_2
#undef DSTRAIN_SUMS_8
#undef DSTRAIN_SUMS_10
#undef DSTRAIN_LEFT
#undef DSTRAIN_WGMMA_16
#undef DSTRAIN_WGMMA_64
#undef DSTRAIN_WGMMA_80

}  // namespace dstrain::kernels::cuda::wgmma
