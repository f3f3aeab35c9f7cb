#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/conv/conv.h"
#include "engine/kernels/parameter.h"

/// Excitation of channels with its gradient; rules in engine/kernels/ops.h, legend in conv.h.
/// Hu et al. 2018, arXiv:1709.01507, sec. 3.2.
namespace dstrain::ops {

/// sigmoid: 1 / (1 + exp(-z)). hard_sigmoid: min(max(z + 3, 0), 6) / 6, Howard et al. 2019,
/// arXiv:1905.02244, sec. 5.2.
enum class Gate { sigmoid, hard_sigmoid };

/// conv(x * gate(z)), without bias: x [B, H, W, C], z [B, C] -> [B, H', W', out]. Saves x and z;
/// what is convolved is made again in backward.
[[nodiscard]] at::Tensor excited_conv(const at::Tensor& x_BHWC, const at::Tensor& z_BC, Gate gate,
                                      const ConvShape& shape, Parameter& weight);

}  // namespace dstrain::ops
