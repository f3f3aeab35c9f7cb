#pragma once

#include <ATen/core/Tensor.h>

/// Activations of convolutional networks, by ATen; kernels of ours have them on load.
namespace dstrain::ops {

/// relu6: min(max(z, 0), 6). silu: z sigmoid(z), Hendrycks & Gimpel 2016, arXiv:1606.08415.
/// hardswish: z min(max(z + 3, 0), 6) / 6, Howard et al. 2019, arXiv:1905.02244, sec. 5.2.
enum class ImageActivation { none, relu, relu6, silu, hardswish };

/// The activation of z, in fp32.
[[nodiscard]] at::Tensor activate(const at::Tensor& z, ImageActivation activation);
/// dy times the derivative at z, in fp32. At a corner it is that of PyTorch.
[[nodiscard]] at::Tensor activation_gradient(const at::Tensor& dy, const at::Tensor& z,
                                             ImageActivation activation);

}  // namespace dstrain::ops
