#pragma once

#include <cstddef>

#include "engine/kernels/linear/gemm_cache.h"

/// Products by cuBLASLt on the current device and stream; not for other layers.
namespace dstrain::ops {

struct GemmCall {
  GemmKey key = {};
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
  void* vector = nullptr;  ///< bias [n] of out's dtype, or row sums [m] fp32 to be written
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  float alpha = 1;
  float beta = 0;          ///< 0: out is only written
  bool rows_vary = false;  ///< ProductOptions::rows_vary
};

/// Runs the fastest known algorithm, measuring first where none is known. Error{internal} names the
/// product when cuBLASLt has no algorithm for it.
void run_gemm(const GemmCall& call);

/// Runs a call with row sums if an algorithm for it exists and costs at most `extra_s` more than
/// the same product without them; otherwise runs nothing.
[[nodiscard]] bool run_gemm_if_cheap(const GemmCall& call, double extra_s);

}  // namespace dstrain::ops
