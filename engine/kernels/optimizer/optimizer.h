#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/kernels/optimizer/control.h"
#include "engine/kernels/optimizer/loss_scale.h"
#include "engine/kernels/optimizer/optimizer_rules.h"

/// The tail of a training step on flat shards, without host synchronisation: everything a later
/// kernel must know about the step stands in StepControl on the device.
///
/// States are fp32 beside a compute copy; or the same with weights in halves, of which the compute
/// copy (bf16) is the upper one and `master` the lower (split_weight.h); or all bf16: then master is the compute copy (bf16, and
/// `compute` undefined or the same memory), moments are bf16 too, arithmetic stays fp32, and
/// results are rounded stochastically, since a small step on a bf16 number would round to nothing.
/// Gradients are fp32 in both cases, or bf16 beside a compute copy or states in bf16.
namespace dstrain::optimizer {

/// Adds the sum of squares of `gradient` (fp32 or bf16, flat) times `factor` to element 0 of `sum`
/// (fp32). Deterministic.
void add_squares(const at::Tensor& gradient, double factor, const at::Tensor& sum);

struct FinishOptions {
  double clip_norm = 0;  ///< 0: no clipping
  LossScaling loss_scaling = {};
  double beta1 = AdamW{}.beta1, beta2 = AdamW{}.beta2;  ///< AdamW's, for its bias correction
};
/// From the sum of squares over all ranks (element 0 of `sum`): norm, factor, skip, next loss
/// scale, counters and AdamW's bias corrections, so that all that update read the same numbers.
/// Clip: factor = min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_.
void finish_gradients(const at::Tensor& control, const at::Tensor& sum,
                      const FinishOptions& options);

/// One step of a rule on what a rank owns, with equal bits on every device. One pass: reads
/// gradient, master (of halves both) and moments; writes master, moments and the compute copy. Does nothing when
/// control[kSkip] is 1. All flat, same length; `compute` fp32/bf16/fp16, or undefined when master
/// is read; a direction (MuonMomentum) is fp32 or bf16, and bf16 beside bf16 states.
struct Step {
  at::Tensor master;                ///< fp32, bf16 or the lower halves, as 16-bit integers
  std::vector<at::Tensor> moments;  ///< as many as the rule has, in its order
  at::Tensor gradient, compute;
  Rule rule;
  /// For bf16 states: random bits are a function of seed, step and first_element + i, the element's
  /// position in the whole, so that results do not depend on how it is divided into shards.
  std::uint64_t seed = 0;
  std::int64_t first_element = 0;
};
void update(const Step& step, const at::Tensor& control);
/// Elements [begin, end) of the same on the CPU, by the calling thread alone; `begin` is a multiple
/// of 128.
void update_range(const Step& step, const at::Tensor& control, std::int64_t begin,
                  std::int64_t end);

/// Weights in halves: what SplitWeight has, of whole tensors.
struct Halves {
  at::Tensor upper, lower;  ///< bf16, and 16-bit integers
};
/// `weights`: fp32, dense.
[[nodiscard]] Halves split(const at::Tensor& weights);
/// fp32, on the device of both.
[[nodiscard]] at::Tensor join(const at::Tensor& upper, const at::Tensor& lower);

}  // namespace dstrain::optimizer
