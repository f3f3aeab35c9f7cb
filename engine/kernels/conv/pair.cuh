#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "engine/base/philox.h"

/// Two neighbouring channels as they lie in memory, on GPU and host.
namespace dstrain::kernels::cuda {

template <typename T>
struct Pair;

template <>
struct Pair<float> {
  float2 word;
  DSTRAIN_HOST_DEVICE static Pair zero() { return {{0, 0}}; }
  DSTRAIN_HOST_DEVICE static Pair of(float a, float b) { return {{a, b}}; }
  DSTRAIN_HOST_DEVICE float first() const { return word.x; }
  DSTRAIN_HOST_DEVICE float second() const { return word.y; }
};

template <>
struct Pair<__nv_bfloat16> {
  std::uint32_t word;
  DSTRAIN_HOST_DEVICE static Pair zero() { return {0}; }
  DSTRAIN_HOST_DEVICE static Pair of(float a, float b) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    Pair pair;
    memcpy(&pair.word, &both, sizeof(pair.word));
    return pair;
  }
  // bf16 is the upper half of fp32.
  DSTRAIN_HOST_DEVICE float first() const { return as_float(word << 16); }
  DSTRAIN_HOST_DEVICE float second() const { return as_float(word & 0xffff0000u); }

 private:
  DSTRAIN_HOST_DEVICE static float as_float(std::uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
  }
};

template <>
struct Pair<__half> {
  __half2 word;
  DSTRAIN_HOST_DEVICE static Pair zero() { return of(0, 0); }
  DSTRAIN_HOST_DEVICE static Pair of(float a, float b) { return {__floats2half2_rn(a, b)}; }
  DSTRAIN_HOST_DEVICE float first() const { return __low2float(word); }
  DSTRAIN_HOST_DEVICE float second() const { return __high2float(word); }
};

/// One element of a 2-byte aligned array.
DSTRAIN_HOST_DEVICE float scalar(const float* x) { return *x; }
DSTRAIN_HOST_DEVICE float scalar(const __nv_bfloat16* x) { return __bfloat162float(*x); }
DSTRAIN_HOST_DEVICE float scalar(const __half* x) { return __half2float(*x); }

}  // namespace dstrain::kernels::cuda
