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

/// For messages.
[[nodiscard]] const std::string& name_of(const Parameter& parameter);

/// The value of a parameter, checked: bound, dense, on x's device and of its dtype.
[[nodiscard]] const at::Tensor& value_of(const Parameter& parameter, const at::Tensor& x);

/// Parameters are no autograd inputs, so an operator whose input needs no gradient would leave no
/// trace in the graph: then this empty leaf stands in, and backward reaches the operator's weights.
/// Nothing otherwise, or when none of those weights is trained.
[[nodiscard]] std::optional<at::Tensor> anchor_for(const at::Tensor& x, bool any_trainable = true);

/// Dense [size] of `dtype` on like's device.
[[nodiscard]] bool is_vector(const at::Tensor& tensor, std::int64_t size, at::ScalarType dtype,
                             const at::Tensor& like);

/// Its elements begin at a multiple of 16 bytes.
[[nodiscard]] bool at_16_bytes(const at::Tensor& tensor);

[[nodiscard]] std::string shape_of(const at::Tensor& tensor);

/// fp32 scratch of a kernel on x's device.
[[nodiscard]] at::Tensor scratch(const at::Tensor& x, at::IntArrayRef sizes);

/// Where a kernel's fp32 result goes; null for an undefined tensor.
[[nodiscard]] float* fp32_or_null(const at::Tensor& tensor);

}  // namespace dstrain::ops
