#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/conv/image_activation.h"

/// Batch norm of images and its gradient in its passes on a CPU, without autograd and
/// communication; what the operators of ops_batch_norm.h are made of there (on a GPU:
/// batch_norm_gpu.h). Ioffe & Szegedy 2015, arXiv:1502.03167.
///
/// Legend: image tensors are dense [B, H, W, C]; the first `valid` of the B samples count (a []
/// int32 tensor; undefined: all), the others are fillers, which enter no sum and
/// get no gradient. N = valid * H * W elements of a channel.
namespace dstrain::ops {

/// [2 C + 1] fp64: of each channel the sum of x - shift
/// and of its square, then N. `shift` [C] fp32 is any number near the mean, so that the variance
/// does not cancel; of several ranks the same on all.
[[nodiscard]] at::Tensor batch_norm_sums(const at::Tensor& x, const at::Tensor& shift,
                                         const at::Tensor& valid);

/// [2 C + 1] fp32: mean, 1 / sqrt(variance + eps) of each channel, N. N = 0 marks fixed statistics,
/// which do not depend on x.
struct ChannelStatistics {
  at::Tensor all;
  [[nodiscard]] std::int64_t channels() const { return (all.numel() - 1) / 2; }
  [[nodiscard]] at::Tensor mean() const { return all.narrow(0, 0, channels()); }
  [[nodiscard]] at::Tensor rstd() const { return all.narrow(0, channels(), channels()); }
  [[nodiscard]] at::Tensor count() const { return all.narrow(0, 2 * channels(), 1); }
};
/// From those sums, of one or several ranks.
[[nodiscard]] ChannelStatistics statistics_of_sums(const at::Tensor& sums, const at::Tensor& shift,
                                                   double eps);
[[nodiscard]] ChannelStatistics fixed_statistics(const at::Tensor& mean, const at::Tensor& variance,
                                                 double eps);

/// What running statistics are moved by: adds the samples' number times mean and unbiased variance
/// to [C] fp32 each; of a rank its own `samples`, a [] tensor, though the sums may be of all ranks.
void add_step_statistics(const at::Tensor& sums, const at::Tensor& shift, const at::Tensor& samples,
                         const at::Tensor& mean_sum, const at::Tensor& variance_sum);

/// What one normalisation of x needs beside it.
struct Normalisation {
  ChannelStatistics statistics;
  at::Tensor weight, bias;  ///< [C] of the compute dtype
  ImageActivation activation = ImageActivation::none;
};

/// activation((x - mean) rstd weight + bias + residual), rounded once. `residual` as x, or
/// undefined.
[[nodiscard]] at::Tensor batch_norm_apply(const at::Tensor& x, const Normalisation& how,
                                          const at::Tensor& residual);

/// What backward has: x, the gradient dy of the output, and, after a residual, the output y.
struct NormalisedGradient {
  at::Tensor x, dy, y;
  Normalisation how;
  at::Tensor valid;
};
/// [2 C] fp64: sum of dz and of dz xhat of each channel, where dz is the gradient
/// before the activation and xhat = (x - mean) rstd.
[[nodiscard]] at::Tensor batch_norm_gradient_sums(const NormalisedGradient& of);
/// rstd weight (dz - (sum dz + xhat sum dz xhat) / N), or rstd weight dz with fixed statistics; 0
/// for fillers. `sums` as above, of all ranks that share the statistics; undefined where these are
/// fixed.
[[nodiscard]] at::Tensor batch_norm_input_gradient(const NormalisedGradient& of,
                                                   const at::Tensor& sums);
/// dz, which is the gradient of a residual.
[[nodiscard]] at::Tensor batch_norm_residual_gradient(const NormalisedGradient& of);

}  // namespace dstrain::ops
