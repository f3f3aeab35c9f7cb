#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/batch_norm/activation_math.h"
#include "engine/kernels/dtype.h"

/// Batch norm, and squeeze and excitation: arguments and the GPU version. The rules
/// are in engine/kernels/kernels.h.
///
/// An image tensor [samples, pixels, channels] is dense: PyTorch's channels-last layout. The
/// statistics are those of the first `valid` samples, a number on the device; null: of all. Later
/// samples are fillers: they are normalised like the others, and their gradient is zero. A channel
/// has a scale and a shift, so that its normalised value is x * scale + shift; null: x itself.
namespace dstrain::kernels {

/// Sums over samples and pixels of x - centre and of its square. The centre is one of the elements,
/// so that the variance does not cancel however far the mean is from zero.
struct BatchNormSums {
  const void* x;              ///< [samples, pixels, channels]
  float* centre;              ///< [channels], written: pixel `centre_pixel` of the first sample
  std::int64_t centre_pixel;  ///< an inner one: pixels at the border see padding
  const std::int32_t* valid;  ///< [1]
  float* partial;             ///< [batch_norm_partials(...), 2, channels]
  std::int64_t samples, pixels, channels;
  DType dtype;
};
/// Rows of partial sums of this shape.
[[nodiscard]] std::int64_t batch_norm_partials(std::int64_t samples, std::int64_t pixels,
                                               std::int64_t channels);

/// Adds up partial sums of one rank for several ranks, whose sums are added before they are used:
/// about `origin`, which they have in common, and in fp64, as that may be far from the mean.
struct BatchNormMoveSums {
  const float* partial;       ///< [partials, 2, channels]
  const float* centre;        ///< [channels], as the sums have it
  const float* origin;        ///< [channels]
  const std::int32_t* valid;  ///< [1]
  double* sums;  ///< [2 channels + 1]: of x - origin, of its square; elements of a channel
  std::int64_t partials;
  std::int64_t samples, pixels, channels;
};

/// The same of gradients: sums[0, channel] of dz, sums[1, channel] of dz * (x - mean) * rstd.
struct BatchNormAddSums {
  const float* partial;  ///< [partials, 2, channels]
  const float* rstd;     ///< [channels]
  float* sums;           ///< [2, channels]
  std::int64_t partials, channels;
};

/// Adds up the partial sums. Biased variance; Ioffe & Szegedy 2015, arXiv:1502.03167, alg. 1:
/// scale = weight / sqrt(variance + eps), shift = bias - mean * scale.
struct BatchNormFinish {
  const float* partial;       ///< [partials, 2, channels]
  const double* shared;       ///< [2 channels + 1], BatchNormMoveSums of all ranks, used
                              ///< instead of partial, with its origin as centre; null: none
  const float* centre;        ///< [channels], as the sums have it
  const void* weight;         ///< [channels]
  const void* bias;           ///< [channels]
  const std::int32_t* valid;  ///< [1]
  float* mean;                ///< [channels]
  float* rstd;                ///< [channels]
  float* count;               ///< [1]: elements of a channel
  float* scale;               ///< [channels]
  float* shift;               ///< [channels]
  /// [channels], to which samples that count times the mean and the unbiased variance are added;
  /// null: neither.
  float* mean_sum;
  float* variance_sum;
  std::int64_t partials;
  std::int64_t samples, pixels, channels;
  float eps;
  DType dtype;
};

/// Scale and shift of statistics that are known.
struct BatchNormFold {
  const float* mean;   ///< [channels]
  const float* rstd;   ///< [channels]
  const void* weight;  ///< [channels]
  const void* bias;    ///< [channels]
  float* scale;        ///< [channels]
  float* shift;        ///< [channels]
  std::int64_t channels;
  DType dtype;
};

/// Samples that skip a branch: the factor of sample i is what Dropout (activation/kernels.h) makes
/// of element i, were it 1. At most kDropSamples.
struct DropSamples {
  const std::int64_t* seed = nullptr;  ///< [1], on the device; null: each factor is 1
  std::uint64_t place = 0;
  float share = 0;
};
inline constexpr std::int64_t kDropSamples = 4096;

/// y = activation((x * scale + shift) * factor + residual * residual_scale + residual_shift) with
/// the factor of the sample, or with a gate round(activation(x * scale + shift)) * gate of the
/// sample and channel.
struct BatchNormApply {
  const void* x;         ///< [samples, pixels, channels]
  const float* scale;    ///< [channels]
  const float* shift;    ///< [channels]
  const void* residual;  ///< as x; null: nothing
  const float* gate;     ///< [samples, channels], not with residual; null: 1
  void* y;               ///< as x; may alias x and residual
  std::int64_t samples, pixels, channels;
  Activation activation;
  DType dtype;
  DropSamples drop = {};
  const float* residual_scale = nullptr;  ///< [channels]; null with residual_shift: 1 and 0
  const float* residual_shift = nullptr;
};

/// Sums over samples and pixels of dz = grad_y * activation'(x * scale + shift) * factor and of dz
/// * (x - mean). Where dz without the factor is written, BatchNormBackwardApply can take it as
/// grad_y without an activation, and need not read y.
struct BatchNormBackwardSums {
  const void* x;              ///< [samples, pixels, channels]
  const void* y;              ///< as x: what forward gave, for a ReLU that followed a residual:
                              ///< then dz is grad_y where y > 0; null: the activation of x
  const void* grad_y;         ///< as x
  const float* mean;          ///< [channels]
  const float* scale;         ///< [channels]
  const float* shift;         ///< [channels]
  const std::int32_t* valid;  ///< [1]
  float* partial;             ///< [batch_norm_partials(...), 2, channels]
  std::int64_t samples, pixels, channels;
  Activation activation;
  DType dtype;
  DropSamples drop = {};
  void* grad_residual = nullptr;  ///< as x: dz without the factor, 0 for fillers; may alias grad_y;
                                  ///< null: not wanted
};

/// Adds up these sums: gradients of weight and bias, and what makes the gradient of x:
/// dx = scale * dz + (x - mean) * slope + offset.
struct BatchNormBackwardFinish {
  const float* partial;   ///< [partials, 2, channels]
  const float* all_sums;  ///< [2, channels]: sums of dz and dz * x_hat over the ranks that share
                          ///< the statistics; null: those of `partial`
  const float* rstd;      ///< [channels]
  const float* scale;     ///< [channels]
  const float* count;     ///< [1]: elements of a channel; 0: the statistics are constants
  float* slope;           ///< [channels]
  float* offset;          ///< [channels]
  float* grad_weight;     ///< [channels]; null: not wanted
  float* grad_bias;       ///< [channels]; null: not wanted
  std::int64_t partials, channels;
};

struct BatchNormBackwardApply {
  const void* x;  ///< [samples, pixels, channels]
  const void* y;  ///< as BatchNormBackwardSums
  const void* grad_y;
  const float* mean;
  const float* scale;
  const float* shift;
  const float* slope;   ///< [channels]; null with offset: zero
  const float* offset;  ///< [channels]
  const std::int32_t* valid;
  void* grad_x;         ///< as x; may alias grad_y
  void* grad_residual;  ///< as x: dz without the factor; may alias grad_y; null: not wanted
  std::int64_t samples, pixels, channels;
  Activation activation;
  DType dtype;
  DropSamples drop = {};
};

/// Mean over the pixels of round(activation(x * scale + shift)). Squeeze of Hu et al. 2017,
/// arXiv:1709.01507, eq. 2; without scale and shift the global average pool.
struct Squeeze {
  const void* x;       ///< [samples, pixels, channels]
  const float* scale;  ///< [channels] or null
  const float* shift;  ///< [channels] or null
  void* mean;          ///< [samples, channels]
  std::int64_t samples, pixels, channels;
  Activation activation;
  DType dtype;
};

/// Sums over the pixels of a sample, for a result of y = a * gate, a = round(activation(z)), z = x
/// * scale + shift: of grad_y * a, which is the gate's gradient, and what the batch norm's sums
/// follow from once the gradient of the squeezed mean is known. y again, where it is wanted.
struct GateBackwardSums {
  const void* x;       ///< [samples, pixels, channels]
  const void* grad_y;  ///< as x
  const float* mean;   ///< [channels]
  const float* scale;  ///< [channels]
  const float* shift;  ///< [channels]
  float* grad_gate;    ///< [samples, channels]
  float* sums;  ///< [samples, 4, channels]: grad_y a', a', grad_y a' (x - mean), a' (x - mean)
  std::int64_t samples, pixels, channels;
  Activation activation;
  DType dtype;
  const float* gate = nullptr;  ///< [samples, channels]
  void* y = nullptr;            ///< as x, as batch_norm_apply gives it; null with gate: not wanted
};

/// The partial sums of BatchNormBackwardFinish for dz = (grad_y * gate + grad_mean / pixels) *
/// activation'(z), from the sums above.
struct GateBackwardCombine {
  const float* sums;       ///< [samples, 4, channels]
  const float* gate;       ///< [samples, channels]
  const float* grad_mean;  ///< [samples, channels]: gradient of the squeezed mean
  const std::int32_t* valid;
  float* partial;  ///< [1, 2, channels]
  std::int64_t samples, pixels, channels;
};

/// dx of every pixel = grad / pixels: backward of the global average pool.
struct SpreadMean {
  const void* grad;  ///< [samples, channels]
  void* grad_x;      ///< [samples, pixels, channels]
  std::int64_t samples, pixels, channels;
  DType dtype;
};

namespace cuda {
void batch_norm_sums(const BatchNormSums& args, cudaStream_t stream);
void batch_norm_move_sums(const BatchNormMoveSums& args, cudaStream_t stream);
void batch_norm_add_sums(const BatchNormAddSums& args, cudaStream_t stream);
void batch_norm_finish(const BatchNormFinish& args, cudaStream_t stream);
void batch_norm_fold(const BatchNormFold& args, cudaStream_t stream);
void batch_norm_apply(const BatchNormApply& args, cudaStream_t stream);
void batch_norm_backward_sums(const BatchNormBackwardSums& args, cudaStream_t stream);
void batch_norm_backward_finish(const BatchNormBackwardFinish& args, cudaStream_t stream);
void batch_norm_backward_apply(const BatchNormBackwardApply& args, cudaStream_t stream);
void squeeze(const Squeeze& args, cudaStream_t stream);
void gate_backward_sums(const GateBackwardSums& args, cudaStream_t stream);
void gate_backward_combine(const GateBackwardCombine& args, cudaStream_t stream);
void spread_mean(const SpreadMean& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace dstrain::kernels
