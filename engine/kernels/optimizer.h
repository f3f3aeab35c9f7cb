#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/kernels/control.h"

/// The tail of a training step on flat shards, without host synchronisation: everything a later
/// kernel must know about the step stands in StepControl on the device.
///
/// States are fp32 beside a compute copy, or all bf16: then master is the compute copy (bf16, and
/// `compute` undefined or the same memory), moments are bf16 too, arithmetic stays fp32, and
/// results are rounded stochastically, since a small step on a bf16 number would round to nothing.
/// Gradients are fp32 in both cases.
namespace dstrain::optimizer {

/// Adds the sum of squares of `gradient` (fp32, flat) times `factor` to element 0 of `sum` (fp32).
/// Deterministic.
void add_squares(const at::Tensor& gradient, double factor, const at::Tensor& sum);

struct FinishOptions {
  double clip_norm = 0;  ///< 0: no clipping
  bool dynamic_loss_scale = false;
  int growth_interval =
      2000;  ///< finite steps before the scale doubles; it halves at each non-finite one
};
/// From the sum of squares over all ranks (element 0 of `sum`): norm, factor, skip, next loss scale
/// and counters. Clip: factor = min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_.
void finish_gradients(const at::Tensor& control, const at::Tensor& sum,
                      const FinishOptions& options);

/// AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, alg. 2) with bias correction; weight decay
/// decoupled and scaled by lr, as torch.optim.AdamW. One pass: reads gradient, master, moments;
/// writes master, moments and the compute copy. Does nothing when control[kSkip] is 1. All flat,
/// same length; `compute` fp32/bf16/fp16, or undefined when master is read.
struct AdamW {
  at::Tensor master, exp_avg, exp_avg_sq, gradient, compute;
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  /// Of bf16 states: random bits are a function of seed, step, and first_element + i, the element's
  /// position in the whole, so that results do not depend on how it is divided into shards.
  std::uint64_t seed = 0;
  std::int64_t first_element = 0;
};
void adamw(const AdamW& step, const at::Tensor& control);

/// SGD with momentum as torch.optim.SGD (weight decay added to the gradient, dampening 0, no
/// Nesterov).
struct Sgd {
  at::Tensor master, momentum_buffer, gradient, compute;
  double lr = 0, momentum = 0.9, weight_decay = 0;
  std::uint64_t seed = 0;  ///< and first_element: as in AdamW
  std::int64_t first_element = 0;
};
void sgd(const Sgd& step, const at::Tensor& control);

}  // namespace dstrain::optimizer
