#include "engine/nn/layer_costs.h"

#include <algorithm>
#include <utility>

#include "engine/nn/layer_cost.h"

namespace dstrain {

LayerCosts::LayerCosts(std::string block, int compute_bytes, Works works, const GpuLimits& limits)
    : compute_bytes_(compute_bytes), works_(works), limits_(limits) {
  cost_.name = std::move(block);
}

void LayerCosts::add(LayerCost layer, std::vector<KernelCost> forward,
                     std::vector<KernelCost> backward) {
  if (on_images()) put_nothing_off(layer);
  layers_.push_back(std::move(layer));
  add_kernels(std::move(forward), std::move(backward));
}

void LayerCosts::add_to_last(const LayerCost& more) { layers_.back() += more; }

void LayerCosts::add_kernels(std::vector<KernelCost> forward, std::vector<KernelCost> backward) {
  if (!on_images()) return;
  const auto append = [](std::vector<KernelCost>& list, const std::vector<KernelCost>& more) {
    list.insert(list.end(), more.begin(), more.end());
  };
  append(cost_.forward_kernels, forward);
  append(cost_.backward_kernels, backward);
}

void LayerCosts::hold(Bytes forward, Bytes backward, Bytes backward_kept) {
  cost_.forward_workspace = std::max(cost_.forward_workspace, forward);
  cost_.backward_workspace = std::max(cost_.backward_workspace, backward);
  backward_kept_ = std::max(backward_kept_, backward_kept);
}

void LayerCosts::let_go(Bytes saved, Bytes hidden) {
  cost_.backward_workspace -= saved;
  backward_kept_ -= saved + hidden;
}

void LayerCosts::add_branch(std::vector<LayerCost> layers, const Workspace& held) {
  const LayerCost sum = total(layers);
  for (LayerCost& layer : layers) {
    const Bytes moved =
        2 * (layer.saved_bytes + layer.made_again) + layer.parameters * compute_bytes_;
    const Flops flops = layer.forward_flops;
    add(std::move(layer), {{.products = flops, .bytes = moved}},
        {{.products = 2 * flops, .bytes = 2 * moved, .launches = 2}});
  }
  let_go(sum.saved_bytes, sum.hidden_bytes);
  // What is kept is not made again.
  hold(held.forward, held.backward, held.backward - sum.hidden_bytes);
}

void LayerCosts::wait_on_host(int product_streams) {
  cost_.host_reads = true;
  cost_.product_streams = product_streams;
}

void LayerCosts::require(SizeOf of, std::int64_t size, const TakenSizes& taken) {
  if (limits_.are_of_gpu() && !taken.has(size))
    cost_.misfits.push_back({.of = of, .size = size, .taken = taken});
}

void LayerCosts::hold_also(Bytes forward, Bytes backward) {
  held_forward_ += forward;
  held_backward_ += backward;
}

BlockCost LayerCosts::finish(const std::vector<BoundaryTensor>& input,
                             std::vector<BoundaryTensor> output) {
  cost_.take(std::exchange(layers_, {}));
  if (works_ == Works::in_layers) {
    const LayerCost sum = total(cost_.layers);
    cost_.weight_flops = sum.weight_flops;
    cost_.held_bytes = sum.held_bytes;
  }
  cost_.boundary = std::move(output);
  cost_.hidden_workspace = backward_kept_ - cost_.backward_workspace;
  cost_.forward_workspace += held_forward_;
  cost_.backward_workspace += held_backward_;
  if (!on_images()) return std::move(cost_);
  for (const BoundaryTensor& tensor : input) cost_.backward_workspace += tensor.bytes();
  return std::move(cost_);
}

}  // namespace dstrain
