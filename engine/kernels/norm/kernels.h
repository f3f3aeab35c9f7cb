#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "engine/kernels/dtype.h"
#include "engine/kernels/taken_sizes.h"

/// Norms: arguments and the GPU version. The rules are in engine/kernels/kernels.h.
namespace dstrain::kernels {

/// sum = x + delta, rounded to dtype; y = (sum - mean) * rstd * weight + bias. Ba et al. 2016,
/// arXiv:1607.06450, eq. 4. Reads x and delta, writes sum and y.
struct AddLayerNorm {
  const void* x;       ///< [rows, dim]
  const void* delta;   ///< [rows, dim] or null: then sum is x and not written
  const void* weight;  ///< [dim]
  const void* bias;    ///< [dim]
  void* sum;           ///< [rows, dim]; null without delta
  void* y;             ///< [rows, dim]
  float* mean;         ///< [rows]
  float* rstd;         ///< [rows]
  std::int64_t rows;
  std::int64_t dim;  ///< kNormDims
  float eps;
  DType dtype;
  /// [norm_maxima(rows, dim)], largest |y|, rounded, of parts of y; null: not wanted.
  float* maxima = nullptr;
};

/// grad_x = grad_sum + the norm's input gradient, in one pass with the sums over rows of grad_y *
/// x_hat and grad_y.
struct AddLayerNormBackward {
  const void* sum;
  const void* weight;
  const void* grad_y;
  const void* grad_sum;  ///< what flows past the norm along the residual; null: nothing
  const float* mean;
  const float* rstd;
  void* grad_x;
  float* grad_weight;  ///< null with grad_bias: neither is wanted
  float* grad_bias;
  float* partial;  ///< scratch, [norm_partials(rows), 2, dim]
  std::int64_t rows;
  std::int64_t dim;
  DType dtype;
  /// [norm_partials(rows), dim], sums of grad_x, rounded, over parts of the rows; null: not wanted.
  /// With it grad_weight is wanted, and dim at most kMaxNormSumsDim.
  float* grad_x_sums = nullptr;
  /// [kAbsMaxPartials], largest |grad_x|, rounded, of parts of it; null: not wanted.
  float* maxima = nullptr;
};

/// sum = x + delta, rounded to dtype; y = weight * (sum * rstd, rounded to dtype), as Qwen2 has it,
/// or (1 + weight) * sum * rstd, as Gemma has it. Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4.
/// Reads x and delta, writes sum and y.
struct AddRmsNorm {
  const void* x;       ///< [rows, dim]
  const void* delta;   ///< [rows, dim] or null: then sum is x and not written
  const void* weight;  ///< [dim]
  void* sum;           ///< [rows, dim]; null without delta
  void* y;             ///< [rows, dim]
  float* rstd;         ///< [rows]
  std::int64_t rows;
  std::int64_t dim;  ///< kNormDims
  float eps;
  DType dtype;
  /// [norm_maxima(rows, dim)], largest |y|, rounded, of parts of y; null: not wanted.
  float* maxima = nullptr;
  bool less_one = false;  ///< the factor is 1 + weight
};

/// grad_x = grad_sum + the norm's input gradient, in one pass with the sum over rows of grad_y *
/// sum * rstd.
struct AddRmsNormBackward {
  const void* sum;
  const void* weight;
  const void* grad_y;
  const void* grad_sum;  ///< what flows past the norm along the residual; null: nothing
  const float* rstd;
  void* grad_x;
  float* grad_weight;  ///< null: not wanted
  float* partial;      ///< scratch, [norm_partials(rows), dim]
  std::int64_t rows;
  std::int64_t dim;
  DType dtype;
  /// [kAbsMaxPartials], largest |grad_x|, rounded, of parts of it; null: not wanted.
  float* maxima = nullptr;
  bool less_one = false;  ///< as in AddRmsNorm
};
inline constexpr std::int64_t kMaxNormSumsDim = 6144;  ///< of AddLayerNormBackward::grad_x_sums
[[nodiscard]] std::int64_t norm_partials(std::int64_t rows);
[[nodiscard]] std::int64_t norm_maxima(std::int64_t rows, std::int64_t dim);
/// Dynamic shared memory of backward, which stages rows there where a block has room for them.
[[nodiscard]] std::size_t norm_backward_bytes(std::int64_t dim, DType dtype, bool staged);

namespace cuda {
void add_layer_norm(const AddLayerNorm& args, cudaStream_t stream);
void add_layer_norm_backward(const AddLayerNormBackward& args, cudaStream_t stream);
void add_rms_norm(const AddRmsNorm& args, cudaStream_t stream);
void add_rms_norm_backward(const AddRmsNormBackward& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace dstrain::kernels
