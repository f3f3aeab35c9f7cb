#pragma once

#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include <optional>
#include <vector>

#include "engine/kernels/linear/gemm_description.h"

/// Which algorithm of cuBLASLt runs a product fastest; of gemm_library.cpp.
namespace dstrain::ops {

enum class GemmTuning {
  none,   ///< what the library proposes first
  quick,  ///< a tenth of a second for a kind of product, which it is timed in for itself
  /// Seconds for each, with many more algorithms, in whole runs of each: a GPU that is busy lowers
  /// its clock to stay within its power, and then the algorithm wins that needs less of it.
  sustained,
};

/// By DSTRAIN_GEMM_TUNE.
[[nodiscard]] GemmTuning gemm_tuning();

/// Times `call` by each of `candidates` on `stream`, and waits for it. Nothing when there is no
/// memory for a trial, or no candidate runs.
[[nodiscard]] std::optional<GemmChoice> fastest_algorithm(
    cublasLtHandle_t library, GemmDescription& description, const GemmCall& call,
    const std::vector<cublasLtMatmulAlgo_t>& candidates, const GemmWorkspace& workspace,
    const c10::cuda::CUDAStream& stream);

/// A choice's words as the library takes them.
[[nodiscard]] cublasLtMatmulAlgo_t algorithm_of(const GemmChoice& choice);

}  // namespace dstrain::ops
