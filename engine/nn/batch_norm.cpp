#include "engine/nn/batch_norm.h"

#include <optional>
#include <utility>

#include "engine/nn/image_layers.h"
#include "engine/nn/layer_cost.h"

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

Features BatchNorm::run(LayerPass& pass, const Features& x, const Added& added) {
  if (pass.costs != nullptr) {
    add_cost(*pass.costs, x, added.residual != nullptr);
    return x.sized(x.size.shape);
  }
  return {.tensor = forward(x.tensor, pass.call,
                            added.residual != nullptr ? added.residual->tensor : at::Tensor(),
                            added.left, added.drop)};
}

Features BatchNorm::run_pool(LayerPass& pass, const Features& x, const ops::PoolShape& pool,
                             const std::string& pool_name) {
  if (pass.costs == nullptr) return {.tensor = forward_pool(x.tensor, pass.call, pool)};
  const Features output = x.as(pooled(x.image(), pool));
  const Bytes in = x.bytes(), out = output.bytes(), places = output.image().elements();
  std::vector<KernelCost> forward, backward;
  if (!fixed()) {
    forward = {{.bytes = in}, {}};
    backward = {{.bytes = in + out + places}, {}};
  }
  add(*pass.costs, x, std::move(forward), std::move(backward));
  pass.costs->add({.name = pool_name, .saved_bytes = places}, {{.bytes = in + out + places}},
                  {{.bytes = 2 * in + out + places}});
  pass.costs->hold(out, in + out);
  return output;
}

void BatchNorm::add_cost(LayerCosts& costs, const Features& x, bool residual) const {
  const Bytes in = x.bytes();
  // Behind a residual, ReLU's gradient follows from the output.
  const int output_read = residual && activation_ == ops::ImageActivation::relu ? 1 : 0,
            added = residual ? 1 : 0;
  std::vector<KernelCost> forward, backward;
  if (!fixed()) {
    forward = {{.bytes = in}, {}};
    backward = {{.bytes = (2 + output_read) * in}, {}};
  }
  forward.push_back({.bytes = (2 + added) * in});
  // The pass of the sums leaves the residual's gradient to the other one.
  const bool early = output_read > 0 && !fixed();
  if (early) backward.front().bytes += in;
  backward.push_back({.bytes = (early ? 3 : 3 + output_read + added) * in});
  add(costs, x, std::move(forward), std::move(backward));
  costs.hold(in, (residual ? 3 : 2) * in);
}

void BatchNorm::add_cost_beside(LayerCosts& costs, const Features& x) const {
  const Bytes in = x.bytes();
  std::vector<KernelCost> forward, backward;
  if (!fixed()) {
    forward = {{.bytes = in}, {}};
    backward = {{.bytes = 2 * in}, {}};
  }
  backward.push_back({.bytes = 3 * in});
  add(costs, x, std::move(forward), std::move(backward));
  costs.hold(0, 4 * in);
}

void BatchNorm::add(LayerCosts& costs, const Features& x, std::vector<KernelCost> forward,
                    std::vector<KernelCost> backward) const {
  const std::int64_t channels = weight_.numel();
  LayerCost layer{.name = layer_name_of(weight_),
                  .saved_bytes = x.bytes() + ops::batch_norm_saved_bytes(channels)};
  count(weight_, layer);
  count(bias_, layer);
  costs.add(std::move(layer), std::move(forward), std::move(backward));
  if (fixed() || options_.over != BatchNormOptions::Over::ranks) return;
  const auto add_sum = [&](std::int64_t numbers, ExchangePass pass) {
    costs.exchanges().push_back({.op = CommOp::all_reduce,
                                 .axis = CommAxis::batch,
                                 .bytes = numbers * kFloatBytes,
                                 .pass = pass});
  };
  add_sum(2 * channels + 1, ExchangePass::train);
  add_sum(2 * channels, ExchangePass::backward);
}

}  // namespace dstrain
