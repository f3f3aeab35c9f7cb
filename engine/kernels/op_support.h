#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <cuda_runtime_api.h>

#include <optional>
#include <string>

#include "engine/kernels/dtype.h"
#include "engine/kernels/parameter.h"

/// What the operators share; not for other layers.
namespace dstrain::ops {

/// The kernels' name of a compute dtype; Error{internal} for any other.
[[nodiscard]] kernels::DType kernel_dtype(const at::Tensor& tensor);

/// The stream of this thread on the current device.
[[nodiscard]] cudaStream_t current_stream();

/// `tensor`, dense; a copy only where it was not.
[[nodiscard]] at::Tensor dense(const at::Tensor& tensor);

/// The value of a parameter, checked: bound, dense, on x's device and of its dtype.
[[nodiscard]] const at::Tensor& value_of(const Parameter& parameter, const at::Tensor& x);

/// The gradient of a parameter to add to, checked: bound, dense, as large as the parameter, on x's
/// device. It is zeroed here when it holds nothing yet.
/// It has fp32, or bf16 where it is of a matrix; an operator whose kernel adds to fp32 only asks
/// for Fp32Gradient.
[[nodiscard]] const at::Tensor& gradient_of(Parameter& parameter, const at::Tensor& x);

/// The same, or an undefined tensor for a frozen parameter.
[[nodiscard]] at::Tensor wanted_gradient(Parameter& parameter, const at::Tensor& x);

/// The same for an operator that can overwrite; not `add` means that the buffer holds nothing yet,
/// and the operator must write all of it.
struct GradientTarget {
  at::Tensor tensor;
  bool add = true;
};
[[nodiscard]] GradientTarget gradient_target(Parameter& parameter, const at::Tensor& x);

/// The same for a kernel that can overwrite, of a parameter that may be frozen.
struct WantedTarget {
  float* data = nullptr;  ///< null: the parameter is frozen
  bool write = false;     ///< the buffer holds nothing yet
};
[[nodiscard]] WantedTarget wanted_target(Parameter& parameter, const at::Tensor& x);

/// fp32 to add to, of a matrix whose gradient may be bf16: then these are zeros, and `finish` adds
/// what they have become to the gradient.
class Fp32Gradient {
 public:
  Fp32Gradient(Parameter& parameter, const at::Tensor& x);
  [[nodiscard]] const at::Tensor& sum() const { return sum_; }
  void finish() const;

 private:
  at::Tensor gradient_, sum_;
};

/// Parameters are no autograd inputs, so an operator whose input needs no gradient would leave no
/// trace in the graph: then this empty leaf stands in, and backward reaches the operator's weights.
/// Nothing otherwise, or when none of those weights is trained.
[[nodiscard]] std::optional<at::Tensor> anchor_for(const at::Tensor& x, bool any_trainable = true);

/// Dense [size] of `dtype` on like's device.
[[nodiscard]] bool is_vector(const at::Tensor& tensor, std::int64_t size, at::ScalarType dtype,
                             const at::Tensor& like);

[[nodiscard]] std::string shape_of(const at::Tensor& tensor);

/// weight.gradient [N, ...] += dy^T x with fp32 sums: dy [M, N], x [M, K]. One GEMM into the
/// gradient on a GPU.
void add_weight_gradient(const at::Tensor& x, const at::Tensor& dy, Parameter& weight);

/// gradient [N] += sum of dy [M, N] over rows, in fp32.
void add_bias_gradient(const at::Tensor& dy, const at::Tensor& gradient);

/// The same of sums over parts of the rows, fp32 [parts, N].
void add_partial_sums(const at::Tensor& sums, const at::Tensor& gradient);

/// fp32 scratch of a kernel on x's device.
[[nodiscard]] at::Tensor scratch(const at::Tensor& x, at::IntArrayRef sizes);

/// Where a kernel's fp32 result goes; null for an undefined tensor.
[[nodiscard]] float* fp32_or_null(const at::Tensor& tensor);

}  // namespace dstrain::ops
