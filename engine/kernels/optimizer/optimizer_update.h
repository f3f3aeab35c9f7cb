#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"
#include "engine/kernels/optimizer/optimizer_rules.h"

namespace dstrain::kernels {

/// One optimizer step on flat tensors; see optimizer::update. States are fp32, of which weights may
/// be in halves (SplitWeight), or all bf16 and
/// rounded stochastically: element first_element + i of state s gets 16 bits of a Philox call that
/// is a function of (seed, step, element, s). Any alignment; 16 bytes (and for bf16 states
/// first_element a multiple of 8) is the fast path.
struct OptimizerUpdate {
  static constexpr int kMaxMoments = 2;

  DType states;                ///< f32 or bf16
  void* parameters;            ///< master weights in fp32 or their lower halves, or bf16 parameters
  void* moments[kMaxMoments];  ///< as many as the rule has
  const void* gradient;
  /// f32, or bf16 beside bf16 states or a copy or direction in bf16.
  DType gradient_type = DType::f32;
  /// Copy of fp32 master weights in compute_type, or a direction (Rule::kDirection), which is
  /// bf16 beside bf16 states; may be null.
  void* compute;
  DType compute_type;
  bool split = false;  ///< `parameters` are the lower halves, and `compute` (bf16) the upper ones
  const float* control;
  std::int64_t count;
  optimizer::Rule rule;
  std::uint64_t seed;          ///< and first_element: of bf16 states
  std::int64_t first_element;  ///< position of the first in the whole
};

namespace cuda {
void update(const OptimizerUpdate& args, cudaStream_t stream);
}
}  // namespace dstrain::kernels
