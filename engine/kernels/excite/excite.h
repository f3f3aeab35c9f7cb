#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/conv/image_activation.h"
#include "engine/kernels/parameter.h"

/// The gates of squeeze and excitation with their gradients, without autograd; what the operator of
/// ops_excite.h is made of. Hu et al. 2018, arXiv:1709.01507, sec. 3.2.
///
/// Legend: B samples, C channels, R squeezed channels.
namespace dstrain::ops {

/// sigmoid: 1 / (1 + exp(-z)). hard_sigmoid: min(max(z + 3, 0), 6) / 6, Howard et al. 2019,
/// arXiv:1905.02244, sec. 5.2.
enum class Gate { sigmoid, hard_sigmoid };

/// gate(activation(mean reduce^T + reduce_bias) expand^T + expand_bias).
struct ExciteCall {
  Parameter& reduce;       ///< [R, C, ...], as the weight of a linear map or a 1x1 convolution
  Parameter& reduce_bias;  ///< [R]
  Parameter& expand;       ///< [C, R, ...]
  Parameter& expand_bias;  ///< [C]
  ImageActivation activation = ImageActivation::relu;
  Gate gate = Gate::sigmoid;

  [[nodiscard]] bool trains() const {
    return reduce.trainable || reduce_bias.trainable || expand.trainable || expand_bias.trainable;
  }
};

/// Throws unless the parameters are of this shape for C = `channels`, in the dtype of x.
void check_excite(const at::Tensor& x, std::int64_t channels, const ExciteCall& call);

struct Gates {
  at::Tensor hidden;  ///< [B, R] fp32, before the activation
  at::Tensor gate;    ///< [B, C] fp32
};
/// Gates for the means [B, C].
[[nodiscard]] Gates gates_of(const at::Tensor& mean, const ExciteCall& call);

/// The gradient of the means [B, C] fp32 from that of the gates [B, C] fp32, which it may write
/// over. Adds the gradients of the parameters.
[[nodiscard]] at::Tensor gates_gradient(const at::Tensor& grad_gate, const at::Tensor& mean,
                                        const Gates& gates, const ExciteCall& call);

}  // namespace dstrain::ops
