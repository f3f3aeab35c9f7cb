#include "engine/nn/batch_norm.h"

#include <optional>

namespace dstrain {

BatchNorm::BatchNorm(const std::string& prefix, std::int64_t channels,
                     const BatchNormOptions& options, ops::ImageActivation activation)
    : options_(options),
      activation_(activation),
      mean_{.part = {prefix + ".running_mean", {channels}}},
      variance_{.part = {prefix + ".running_var", {channels}}, .initial = 1},
      steps_{.part = {prefix + ".num_batches_tracked", {}}, .type = at::kLong} {
  weight_.hold({{prefix + ".weight", {channels}}});
  weight_.init = Init::ones;
  bias_.hold({{prefix + ".bias", {channels}}});
}

/// Whether the norm is frozen is known now: its weights are marked before anyone asks.
void BatchNorm::add_states(std::vector<BlockState*>& list) {
  for (BlockState* state : {&mean_, &variance_}) {
    state->change = fixed() ? StateChange::by_block : StateChange::step_mean;
    state->share = options_.momentum;
  }
  steps_.change = fixed() ? StateChange::by_block : StateChange::applied_steps;
  list.insert(list.end(), {&mean_, &variance_, &steps_});
}

at::Tensor BatchNorm::forward_excited(const at::Tensor& x_BHWC, const Call& call, Conv& conv,
                                      BatchNorm* before, const ops::ExciteCall& excite,
                                      Conv& project) {
  std::optional<ops::BatchNormCall> first;
  if (before != nullptr) first.emplace(before->call_of(call));
  const ops::BatchNormCall after = call_of(call);
  return ops::excited_depthwise(x_BHWC, {.before = first ? &*first : nullptr,
                                         .depthwise = conv.shape(),
                                         .depthwise_weight = conv.weight(),
                                         .after = after,
                                         .excite = excite,
                                         .project = project.shape(),
                                         .project_weight = project.weight()});
}

ops::BatchNormCall BatchNorm::call_of(const Call& call) {
  ops::BatchNormCall norm{.weight = weight_,
                          .bias = bias_,
                          .eps = options_.eps,
                          .running_mean = mean_.value,
                          .running_variance = variance_.value,
                          .fixed = fixed() || !call.trains(),
                          .valid = call.valid,
                          .activation = activation_};
  if (norm.fixed) return norm;
  if (options_.over == BatchNormOptions::Over::ranks)
    norm.ranks = call.peers.along(CommAxis::batch);
  if (call.mode == Mode::train) {
    norm.mean_sum = mean_.step_sum;
    norm.variance_sum = variance_.step_sum;
  }
  return norm;
}

LayerCost BatchNorm::cost(const ImageShape& input, int compute_bytes) const {
  LayerCost cost{
      .name = layer_name_of(weight_),
      .saved_bytes = input.bytes(compute_bytes) + ops::batch_norm_saved_bytes(input.channels)};
  count(weight_, cost);
  count(bias_, cost);
  return cost;
}

void BatchNorm::add_exchanges(std::vector<Exchange>& list) const {
  if (fixed() || options_.over != BatchNormOptions::Over::ranks) return;
  const std::int64_t channels = weight_.numel();
  list.push_back({.op = CommOp::all_reduce,
                  .axis = CommAxis::batch,
                  .bytes = (2 * channels + 1) * kFloatBytes,
                  .pass = ExchangePass::train});
  list.push_back({.op = CommOp::all_reduce,
                  .axis = CommAxis::batch,
                  .bytes = 2 * channels * kFloatBytes,
                  .pass = ExchangePass::backward});
}

}  // namespace dstrain
