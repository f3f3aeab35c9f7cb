#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "engine/kernels/batch_norm/ops_batch_norm.h"
#include "engine/kernels/conv/ops_depthwise.h"
#include "engine/kernels/excite/ops_excite.h"
#include "engine/kernels/parameter.h"
#include "engine/nn/block_state.h"
#include "engine/nn/call.h"
#include "engine/nn/conv.h"
#include "engine/nn/feature_shape.h"
#include "engine/nn/layer_pass.h"

namespace dstrain {

struct BatchNormOptions {
  /// Samples of which a training step takes mean and variance: those of a micro-batch of one rank,
  /// or of all data ranks; or the running statistics, which then stay as they are.
  enum class Over { micro_batch, ranks, running };
  Over over = Over::micro_batch;
  double momentum = 0.1;  ///< share of a step's statistics in the running ones
  double eps = 1e-5;
};

/// Batch norm of images with the activation behind it. Ioffe & Szegedy 2015, arXiv:1502.03167.
///
/// Fillers (Batch::valid) enter no statistic and get no gradient. The running statistics change
/// once in each applied step, by the mean over all its samples (StateChange::step_mean): of the
/// micro-batches' means, and of their unbiased variances. With one micro-batch on one rank that is
/// PyTorch's rule. A norm whose weight is frozen is fixed: it uses its running statistics.
class BatchNorm {
 public:
  /// Files name the tensors PREFIX.weight, .bias, .running_mean, .running_var, all [channels], and
  /// .num_batches_tracked; they start at 1, 0, 0, 1 and 0.
  BatchNorm(const std::string& prefix, std::int64_t channels, const BatchNormOptions& options,
            ops::ImageActivation activation = ops::ImageActivation::none);

  /// activation(norm(x) + residual); all [B, H, W, C]; residual undefined: none. `left` as
  /// ops::batch_norm has it, `drop` as BatchNormCall.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x_BHWC, const Call& call,
                                   const at::Tensor& residual = {},
                                   const ops::ResidualGradient& left = {},
                                   const ops::DropMask& drop = {}) {
    ops::BatchNormCall norm = call_of(call);
    norm.drop = drop;
    return ops::batch_norm(x_BHWC, norm, residual, left);
  }
  /// activation(norm(x) + other_norm(other)); the other norm has no activation.
  [[nodiscard]] at::Tensor forward_pair(const at::Tensor& x_BHWC, const Call& call,
                                        const at::Tensor& other_BHWC, BatchNorm& other_norm) {
    return ops::batch_norm_pair(x_BHWC, call_of(call), other_BHWC, other_norm.call_of(call));
  }
  /// The largest of each window of relu(norm(x)), without a residual; ops::norm_pool_fits.
  [[nodiscard]] at::Tensor forward_pool(const at::Tensor& x_BHWC, const Call& call,
                                        const ops::PoolShape& pool) {
    return ops::batch_norm_max_pool(x_BHWC, call_of(call), pool);
  }
  /// activation(norm(conv(activation(before(x))))) with a depthwise convolution; `before` null: x
  /// is convolved as it is. Kept are x, what the convolution gives, and the statistics.
  [[nodiscard]] at::Tensor forward_depthwise(const at::Tensor& x_BHWC, const Call& call, Conv& conv,
                                             BatchNorm* before) {
    if (before == nullptr) {
      return ops::depthwise_norm(x_BHWC, nullptr, conv.shape(), conv.weight(), call_of(call));
    }
    const ops::BatchNormCall first = before->call_of(call);
    return ops::depthwise_norm(x_BHWC, &first, conv.shape(), conv.weight(), call_of(call));
  }

  /// The convolution `project` of what forward_depthwise gives, times the gates that follow from
  /// its means. Kept are x, what the depthwise convolution gives, the statistics, means and gates.
  [[nodiscard]] at::Tensor forward_excited(const at::Tensor& x_BHWC, const Call& call, Conv& conv,
                                           BatchNorm* before, const ops::ExciteCall& excite,
                                           Conv& project);

  /// What forward() adds to the norm.
  struct Added {
    const Features* residual = nullptr;
    ops::ResidualGradient left = {};
    ops::DropMask drop = {};
  };
  /// forward() or its cost.
  [[nodiscard]] Features run(LayerPass& pass, const Features& x, const Added& added);
  [[nodiscard]] Features run(LayerPass& pass, const Features& x) { return run(pass, x, {}); }
  /// forward_pool() or its cost, of which the pool's is that of layer `pool_name`.
  [[nodiscard]] Features run_pool(LayerPass& pass, const Features& x, const ops::PoolShape& pool,
                                  const std::string& pool_name);
  /// forward_depthwise() or its cost.
  [[nodiscard]] Features run_depthwise(LayerPass& pass, const Features& x, Conv& conv,
                                       BatchNorm* before);
  /// Cost of the norm with a residual, which costs an image.
  void add_cost(LayerCosts& costs, const Features& x, bool residual) const;
  /// Cost of the other norm of forward_pair().
  void add_cost_beside(LayerCosts& costs, const Features& x) const;
  /// Cost of forward_depthwise(); `excited`: forward_excited() goes on.
  [[nodiscard]] Features counted_depthwise(LayerCosts& costs, const Features& x, const Conv& conv,
                                           const BatchNorm* before, bool excited) const;

  void add_parameters(std::vector<Parameter*>& list) {
    list.insert(list.end(), {&weight_, &bias_});
  }
  void add_states(std::vector<BlockState*>& list);

  /// It takes no statistics of the batch.
  [[nodiscard]] bool fixed() const {
    return !weight_.trainable || options_.over == BatchNormOptions::Over::running;
  }
  [[nodiscard]] ops::ImageActivation activation() const { return activation_; }

 private:
  [[nodiscard]] ops::BatchNormCall call_of(const Call& call);
  /// Its parameters, and what it keeps of x and its statistics, with the kernels and exchanges.
  void add(LayerCosts& costs, const Features& x, std::vector<KernelCost> forward,
           std::vector<KernelCost> backward) const;

  BatchNormOptions options_;
  ops::ImageActivation activation_;
  Parameter weight_, bias_;
  BlockState mean_, variance_, steps_;
};

}  // namespace dstrain
