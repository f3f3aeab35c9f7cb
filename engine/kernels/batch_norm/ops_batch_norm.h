#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/conv/conv.h"
#include "engine/kernels/conv/image_activation.h"
#include "engine/kernels/conv/residual_gradient.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/parameter.h"

namespace dstrain {
class Communicator;
}

/// Batch norm with its gradient; rules in engine/kernels/ops.h, legend in batch_norm.h.
namespace dstrain::ops {

/// One batch norm layer in one call.
struct BatchNormCall {
  Parameter& weight;
  Parameter& bias;  ///< both [C]
  double eps = 1e-5;
  /// [C] fp32: statistics of evaluation; while training a number near the mean.
  at::Tensor running_mean = {}, running_variance = {};
  bool fixed = false;     ///< normalise by the running statistics, else by those of the batch
  at::Tensor valid = {};  ///< Batch::valid
  Communicator* ranks = nullptr;  ///< whose samples count as one batch; null: this rank's
  /// [C] fp32, to which the samples' number times mean and unbiased variance are added; undefined:
  /// nothing is counted.
  at::Tensor mean_sum = {}, variance_sum = {};
  ImageActivation activation = ImageActivation::none;
  /// Samples that skip the branch beside a residual, as ops_drop_path.h has them: norm(x) of these
  /// counts as 0, that of the others grows by 1 / (1 - share). Without activation only.
  DropMask drop = {};

  [[nodiscard]] bool trains() const { return weight.trainable || bias.trainable; }
};

/// activation(norm(x) + residual), all [B, H, W, C]; `residual` undefined: none, and beside one
/// only ReLU or none. Saves x and the statistics; of ReLU beside a residual its output. `left`:
/// where the residual's gradient is left, if used.
[[nodiscard]] at::Tensor batch_norm(const at::Tensor& x_BHWC, const BatchNormCall& call,
                                    const at::Tensor& residual = {},
                                    const ResidualGradient& left = {});

/// activation(norm(x) + other_norm(other)), where the other norm has no activation and its result
/// is not made on a GPU. Saves both inputs, the statistics, and of ReLU the output.
[[nodiscard]] at::Tensor batch_norm_pair(const at::Tensor& x_BHWC, const BatchNormCall& call,
                                         const at::Tensor& other_BHWC,
                                         const BatchNormCall& other_call);

/// conv(activation(norm(x))), without bias: what is convolved is made again in backward, so that
/// only x and the statistics are saved.
[[nodiscard]] at::Tensor batch_norm_conv(const at::Tensor& x_BHWC, const BatchNormCall& call,
                                         const ConvShape& shape, Parameter& weight);

/// Bytes of statistics that each norm keeps on a GPU.
[[nodiscard]] constexpr std::int64_t batch_norm_saved_bytes(std::int64_t channels) {
  return (4 * channels + 1) * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace dstrain::ops
