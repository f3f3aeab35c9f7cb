#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/batch_norm/batch_norm_context.h"
#include "engine/kernels/batch_norm/ops_batch_norm.h"

/// Batch norm and its gradients on a GPU or a CPU, without autograd: what the operators that
/// contain one are made of. Legend and fillers as in batch_norm.h.
namespace dstrain::ops {

/// An output, and the statistics that backward needs: ChannelStatistics of a CPU, GpuStatistics of
/// a GPU.
struct Normed {
  at::Tensor y, statistics;
};
/// `residual` undefined: none. BatchNormCall::drop holds on a GPU only.
[[nodiscard]] Normed normed(const at::Tensor& x, const BatchNormCall& call,
                            const at::Tensor& residual = {});
/// Beside another norm of `other`, and the statistics of that.
struct NormedPair {
  at::Tensor y, statistics, other_statistics;
};
[[nodiscard]] NormedPair normed_pair(const at::Tensor& x, const BatchNormCall& call,
                                     const at::Tensor& other, const BatchNormCall& other_call);
/// What was normalised in forward, without a residual.
[[nodiscard]] at::Tensor normed_again(const KeptBatchNorm& norm, const at::Tensor& x,
                                      const at::Tensor& statistics);

/// Which of a norm's gradients are wanted.
struct WantedNormGradients {
  bool input, residual;
};
/// What backward has: x and the statistics, the output of a ReLU beside a residual, the output's
/// gradient.
struct NormInputs {
  at::Tensor x, statistics, y, dy;
  DropMask drop = {};  ///< as the call had it
};
struct NormGradients {
  at::Tensor dx, dresidual;
};
/// Adds the gradients of the norm's parameters, too.
[[nodiscard]] NormGradients norm_gradients(const KeptBatchNorm& norm, const NormInputs& in,
                                           WantedNormGradients wanted);

}  // namespace dstrain::ops
