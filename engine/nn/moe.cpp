#include "engine/nn/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/kernels/taken_sizes.h"
#include "engine/nn/call.h"
#include "engine/nn/exchange_rows.h"
#include "engine/nn/layer_cost.h"

namespace dstrain {
namespace {

constexpr Bytes kIndexBytes = 4;

/// `call` for a tensor rank's own rows, which stay there; dropout needs to know their places.
Call call_of_part(Call call, const at::Tensor& x_mD, AxisPart part) {
  if (part.whole()) return call;
  call.peers = {};
  if (!call.dropout_seed.defined()) return call;
  const std::int64_t rows = x_mD.size(0), first = rows * part.index;
  call.own.rows = call.own.rows.defined()
                      ? call.own.rows.narrow(0, first, rows)
                      : at::arange(first, first + rows, x_mD.options().dtype(at::kInt));
  return call;
}

GatedMlpNames mlp_of(const std::string& name, const MoeNames& names) {
  return {.gate = name + "." + names.gate,
          .up = name + "." + names.up,
          .down = name + "." + names.down};
}

/// The axes of those that have several ranks.
CommAxis several(std::initializer_list<std::pair<Axis, AxisPart>> parts) {
  Axes axes;
  for (const auto& [axis, part] : parts) {
    if (!part.whole()) axes = axes | axis;
  }
  return axes;
}

}  // namespace

Moe::Moe(const MoeNames& names, const MoeShape& shape, const MoeLosses& losses,
         const InitialWeights& init)
    : name_(names.layer),
      shape_(shape),
      losses_(losses),
      router_({{name_ + ".gate", shape.router.experts}}, {shape.width}, init, /*has_bias=*/false) {
  DSTRAIN_CHECK(shape.router.experts % ranks() == 0,
                fmt::format("{}: {} ranks for {} experts", name_, ranks(), shape.router.experts));
  std::vector<Piece> gate_up, down;
  const std::int64_t first = shape.splits.experts().index * own_experts();
  for (std::int64_t e = first; e < first + own_experts(); ++e) {
    const GatedMlpNames expert = mlp_of(fmt::format("{}.experts.{}", name_, e), names);
    for (const std::string& matrix : {expert.gate, expert.up})
      gate_up.emplace_back(matrix + ".weight", std::vector{shape.expert_width, shape.width});
    down.emplace_back(expert.down + ".weight", std::vector{shape.width, shape.expert_width});
  }
  gate_up_.hold(std::move(gate_up));
  down_.hold(std::move(down));
  for (Parameter* matrices : {&gate_up_, &down_}) {
    matrices->init = init.kind;
    matrices->init_std = init.std;
    matrices->hidden_matrix = true;
    if (ranks() > 1) matrices->cut = Cut::expert;
  }
  if (shape.shared_width == 0) return;
  shared_.emplace(mlp_of(name_ + ".shared_expert", names), shape.width, shape.shared_width, init);
  shared_gate_.emplace(std::vector<LinearPart>{{name_ + ".shared_expert_gate", 1}},
                       std::vector{shape.width}, init, /*has_bias=*/false);
}

CommAxis Moe::expert_ranks() const {
  return several({{Axis::expert, shape_.splits.expert}, {Axis::tensor, shape_.splits.tensor}});
}

CommAxis Moe::sample_ranks() const {
  return several({{Axis::sequence, shape_.splits.sequence}, {Axis::tensor, shape_.splits.tensor}});
}

ops::RouterLosses Moe::losses_of(const Batch& batch, const BlockContext& context) const {
  const bool trains = context.mode == Mode::train || context.mode == Mode::recompute;
  if (!trains || !context.sample_seed.defined() || (losses_.balance == 0 && losses_.z == 0))
    return {};
  const auto layers = static_cast<double>(losses_.layers);
  const auto& [tensor, sequence, expert, exchange] = shape_.splits;
  ops::RouterLosses losses{.balance = losses_.balance / layers,
                           .z = losses_.z / layers,
                           .tokens = batch.tokens.size(1) * sequence.count,
                           .seed = context.sample_seed,
                           .lengths = batch.lengths,
                           .loss_factor = 1 / layers,
                           .parts = {.sequence = sequence.count,
                                     .places = batch.own.rows,
                                     .rows = tensor,
                                     .ranks = context.peers.along(sample_ranks())}};
  // A recomputation must not count its samples a second time.
  if (context.mode == Mode::train) losses.loss_sum = context.totals.select(0, kBalanceTotal);
  return losses;
}

Features Moe::run(LayerPass& pass, const Features& x, const Workspace& beside) {
  if (pass.costs == nullptr) return {.tensor = forward(x.tensor, *pass.batch, *pass.context)};
  LayerCosts& costs = *pass.costs;
  const int compute_bytes = costs.compute_bytes();
  costs.require(SizeOf::width, shape_.width, kernels::kExpertDims);
  costs.require(SizeOf::experts_per_token, shape_.router.chosen, kernels::kChosenCounts);
  std::vector<LayerCost> list = layers(x.rows(), compute_bytes);
  const Bytes saved = total(list).saved_bytes;
  for (LayerCost& layer : list) costs.add(std::move(layer));
  costs.let_go(saved);
  const Workspace held = workspace(x.rows(), compute_bytes) + beside;
  // Also where the shared expert's outputs of activation functions are kept.
  costs.hold(held.forward, held.backward);
  add_exchanges(costs.exchanges(), x.rows(), compute_bytes);
  costs.wait_on_host(/*product_streams=*/own_experts() > 1 ? 2 : 1);
  return x.sized(x.size.shape);
}

at::Tensor Moe::forward(const at::Tensor& x_mD, const Batch& batch, const BlockContext& context) {
  const Call call = call_of_part(Call::of(batch, context), x_mD, shape_.splits.tensor);
  const ops::Routes routes =
      ops::route(router_.forward(x_mD, call), shape_.router, losses_of(batch, context));
  const ops::ExpertOrder order = ops::sort_by_expert(routes.choices, shape_.router.experts);
  Communicator* peers = context.peers.along(expert_ranks());
  DSTRAIN_CHECK((peers == nullptr ? 1 : peers->size()) == ranks(),
                fmt::format("{}: its experts are shared by {} ranks", name_, ranks()));
  sent_counts_.fetch(order.counts);
  at::Tensor received;
  if (peers != nullptr) {
    received = at::empty_like(order.counts);
    peers->all_to_all(received, order.counts);
    received_counts_.fetch(received);
  }
  at::Tensor shared_mD, gate_m1;
  if (shared_) {
    shared_mD = shared_->forward(x_mD, call);
    gate_m1 = shared_gate_->forward(x_mD, call);
  }
  at::Tensor rows = ops::spread_rows(x_mD, order.place);
  const std::vector<std::int64_t> sent = sent_counts_.take();
  const at::Tensor y =
      peers == nullptr
          ? ops::expert_mlps(rows, sent, gate_up_, down_)
          : run_among_ranks(std::move(rows), sent, received_counts_.take(), received, *peers);
  return ops::combine_rows(y, order.place, routes.weights, shared_mD, gate_m1);
}

at::Tensor Moe::run_among_ranks(at::Tensor rows, const std::vector<std::int64_t>& sent,
                                const std::vector<std::int64_t>& received,
                                const at::Tensor& received_there, Communicator& peers) {
  const std::size_t own = to_index(own_experts());
  ExchangedRows there;
  std::vector<std::int64_t> of_expert(own);
  for (std::size_t i = 0; i < received.size(); ++i) {
    if (i % own == 0) {
      there.sent.push_back(0);
      there.received.push_back(0);
    }
    there.sent.back() += sent[i];
    there.received.back() += received[i];
    of_expert[i % own] += received[i];
  }
  try {
    return run_own_experts(std::exchange(rows, {}), there, of_expert, received_there, peers);
  } catch (const c10::OutOfMemoryError& error) {
    const auto sum = [](const std::vector<std::int64_t>& counts) {
      return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    };
    const std::int64_t load = sum(of_expert);
    throw Error(ErrorKind::internal,
                fmt::format("{}: no memory for the {} rows of the experts of rank {} among {}, "
                            "{:.2f} times the even share: {}",
                            name_, load, peers.rank(), ranks(),
                            static_cast<double>(load) / static_cast<double>(sum(sent)),
                            error.what_without_backtrace()),
                fmt::format("a higher experts.planned_load ({}) plans memory for more rows",
                            shape_.planned_load));
  }
}

at::Tensor Moe::run_own_experts(at::Tensor rows, const ExchangedRows& there,
                                const std::vector<std::int64_t>& of_expert,
                                const at::Tensor& received_there, Communicator& peers) {
  const ExchangedRows back{.sent = there.received, .received = there.sent};
  at::Tensor own_rows = exchange_rows(std::exchange(rows, {}), there, peers);
  if (own_experts() == 1)
    return exchange_rows(ops::expert_mlps(own_rows, of_expert, gate_up_, down_), back, peers);
  const at::Tensor place = ops::place_by_expert(received_there, own_experts(), own_rows.size(0));
  const at::Tensor sorted = ops::spread_rows(std::exchange(own_rows, {}), place);
  const at::Tensor y = ops::expert_mlps(sorted, of_expert, gate_up_, down_);
  return exchange_rows(ops::gather_rows(y, place), back, peers);
}

void Moe::rehearse(std::int64_t all_rows, const at::TensorOptions& compute,
                   at::ScalarType gradients) const {
  const bool trains = gate_up_.trainable || down_.trainable;
  const std::int64_t rows = all_rows / shape_.splits.tensor.count;
  ops::rehearse_expert_mlps(rows * shape_.router.chosen * ranks(), shape_.width,
                            shape_.expert_width, compute,
                            trains ? std::optional(gradients) : std::nullopt);
}

void Moe::scale_output(double scale) {
  down_.output_scale = scale;
  if (shared_) shared_->scale_output(scale);
}

void Moe::add_parameters(std::vector<Parameter*>& list) {
  router_.add_parameters(list);
  list.insert(list.end(), {&gate_up_, &down_});
  if (!shared_) return;
  shared_->add_parameters(list);
  shared_gate_->add_parameters(list);
}

void Moe::add_linears(std::vector<Linear*>& list) {
  if (shared_) shared_->add_linears(list);
}

std::int64_t Moe::planned_rows(std::int64_t rows) const {
  const std::int64_t even = rows * shape_.router.chosen;
  if (ranks() == 1) return even;  // however they are spread
  const auto planned = std::llround(std::ceil(static_cast<double>(even) * shape_.planned_load));
  return std::min<std::int64_t>(planned, even * ranks());
}

LayerCost Moe::experts_cost(std::int64_t rows, int compute_bytes) const {
  const std::int64_t taken = rows * shape_.router.chosen, planned = planned_rows(rows);
  const auto multiplied = static_cast<double>(taken * 3 * shape_.width * shape_.expert_width);
  LayerCost cost{.name = name_ + ".experts", .forward_flops = 2 * multiplied};
  // Their rows for the gradient of the first matrices, gate and up, and what came back.
  const std::int64_t elements = (gate_up_.trainable ? shape_.width : 0) + 2 * shape_.expert_width;
  cost.saved_bytes =
      planned * elements * compute_bytes + taken * (shape_.width * compute_bytes + kIndexBytes);
  if (ranks() > 1 && own_experts() > 1) cost.saved_bytes += planned * kIndexBytes;
  if (gate_up_.trainable && down_.trainable) {
    cost.weight_flops = cost.forward_flops;
    cost.held_bytes = planned * (2 * shape_.width + 3 * shape_.expert_width) * compute_bytes;
  }
  count(gate_up_, cost);
  count(down_, cost);
  return cost;
}

std::vector<LayerCost> Moe::layers(std::int64_t rows, int compute_bytes) const {
  const Bytes stream = rows * shape_.width * compute_bytes;
  std::vector<LayerCost> layers;
  bool kept = false;  // x, by one layer for all
  const auto add = [&](const Linear& linear) {
    layers.push_back(linear.cost(rows, compute_bytes, kept));
    // The first layer that keeps x from one part of backward to the other does it for all.
    if (kept && layers.back().held_bytes > 0) layers.back().held_bytes -= stream;
    kept = kept || layers.back().saved_bytes > 0;
  };
  if (shared_) {
    layers = shared_->layers(rows, compute_bytes);
    kept = layers.front().saved_bytes >= stream;
  }
  add(router_);
  const bool balanced = losses_.balance > 0;
  const Bytes shares = balanced ? samples_of(rows) * shape_.router.experts * kFloatBytes : 0;
  layers.push_back(
      {.name = name_ + " routing",
       .saved_bytes = ops::route_saved_bytes(shape_.router, rows, compute_bytes) + shares});
  layers.push_back(experts_cost(rows, compute_bytes));
  if (!shared_) return layers;
  add(*shared_gate_);
  // Both factors of the shared expert's part.
  layers.push_back({.name = name_ + " sum", .saved_bytes = stream + rows * compute_bytes});
  return layers;
}

Workspace Moe::workspace(std::int64_t rows, int compute_bytes) const {
  const Bytes stream = rows * shape_.width * compute_bytes;
  const std::int64_t taken = planned_rows(rows);
  const Bytes wide = taken * shape_.width * compute_bytes,
              hidden = taken * shape_.expert_width * compute_bytes;
  // The experts: the product of gate and up until it is multiplied. Backward, the gradient of what
  // they returned has taken its place, and beside it stand the product's gradient, those of gate
  // and up, and the product once more, or then the gradient of their rows.
  Workspace max{.forward = hidden, .backward = std::max(4 * hidden, 2 * hidden + wide)};
  if (ranks() > 1) {
    // Rows before and after an exchange or a sort.
    max.forward = std::max(max.forward, 2 * wide);
    max.backward += wide;
  }
  if (!shared_) return max;
  // The shared expert runs before them, and backward when they have let go of what they kept.
  const Workspace shared = shared_->workspace(rows, compute_bytes);
  max.forward = std::max(max.forward, shared.forward);
  max.backward = std::max(max.backward, shared.backward + 2 * stream - 2 * wide - 2 * hidden);
  return max;
}

void Moe::add_exchanges(std::vector<Exchange>& list, std::int64_t rows, int compute_bytes) const {
  if (losses_.balance > 0 && !sample_ranks().axes().empty()) {
    list.push_back({.op = CommOp::all_reduce,
                    .axis = sample_ranks(),
                    .bytes = ops::balance_bytes(shape_.router, samples_of(rows)),
                    .width = static_cast<int>(kFloatBytes),
                    .pass = ExchangePass::train});
  }
  if (ranks() == 1) return;
  const Bytes counts = shape_.router.experts * kIndexBytes;
  const Bytes exchanged = rows * shape_.router.chosen * shape_.width * compute_bytes;
  const auto add = [&](Bytes bytes, int width, ExchangePass pass) {
    list.push_back({.op = CommOp::all_to_all,
                    .axis = expert_ranks(),
                    .bytes = bytes,
                    .width = width,
                    .pass = pass});
  };
  add(counts, static_cast<int>(kIndexBytes), ExchangePass::forward);
  for (const ExchangePass pass : {ExchangePass::forward, ExchangePass::backward}) {
    for (int there_and_back = 0; there_and_back < 2; ++there_and_back)
      add(exchanged, compute_bytes, pass);
  }
}

}  // namespace dstrain
