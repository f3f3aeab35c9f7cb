#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/batch_norm/activation_math.h"
#include "engine/kernels/dtype.h"

/// The gates of squeeze and excitation, from the means of an image's channels: arguments and the GPU
/// version. The rules are in engine/kernels/kernels.h. Hu et al. 2018,
/// arXiv:1709.01507, sec. 3.2.
namespace dstrain::kernels {

/// sigmoid: 1 / (1 + exp(-z)). hard_sigmoid: min(max(z + 3, 0), 6) / 6.
enum class GateRule { sigmoid, hard_sigmoid };

/// hidden = mean reduce^T + reduce_bias; z = activation(hidden) expand^T + expand_bias; gate =
/// rule(z). All between the mean and the gate stays in fp32.
struct Excite {
  const void* mean;         ///< [samples, channels]
  const void* reduce;       ///< [squeezed, channels]
  const void* reduce_bias;  ///< [squeezed]
  const void* expand;       ///< [channels, squeezed]
  const void* expand_bias;  ///< [channels]
  float* hidden;            ///< [samples, squeezed]
  float* gate;              ///< [samples, channels]
  std::int64_t samples, channels, squeezed;
  Activation activation;
  GateRule rule;
  DType dtype;
};

/// The gradients of z, of `hidden` and of the mean.
struct ExciteBackward {
  const float* hidden;     ///< [samples, squeezed]
  const float* gate;       ///< [samples, channels]
  const float* grad_gate;  ///< [samples, channels]
  const void* reduce;
  const void* expand;
  float* grad_z;       ///< [samples, channels]; may alias grad_gate
  float* grad_hidden;  ///< [samples, squeezed]
  float* grad_mean;    ///< [samples, channels]
  std::int64_t samples, channels, squeezed;
  Activation activation;
  GateRule rule;
  DType dtype;
};

/// The gradients of the weights and biases from these.
struct ExciteParameters {
  const void* mean;
  const float* hidden;
  const float* grad_z;
  const float* grad_hidden;
  float* grad_reduce;       ///< [squeezed, channels]; null: not wanted, as the others
  float* grad_reduce_bias;  ///< [squeezed]
  float* grad_expand;       ///< [channels, squeezed]
  float* grad_expand_bias;  ///< [channels]
  std::int64_t samples, channels, squeezed;
  Activation activation;
  DType dtype;
  /// The gradient of the weight holds nothing yet: it is written, not added to.
  bool write_reduce = false, write_expand = false;
};

inline constexpr int kExciteThreads = 1024;

/// Whether the kernels serve these sizes: the numbers of a sample lie in shared memory.
[[nodiscard]] constexpr bool excite_fits(std::int64_t channels, std::int64_t squeezed) {
  return channels > 0 && squeezed > 0 && squeezed <= kExciteThreads &&
         (channels + squeezed + kExciteThreads) * 4 <= 48 * 1024;
}

namespace cuda {
/// Throw Error{internal} where excite_fits says no.
void excite(const Excite& args, cudaStream_t stream);
void excite_backward(const ExciteBackward& args, cudaStream_t stream);
void excite_parameters(const ExciteParameters& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace dstrain::kernels
