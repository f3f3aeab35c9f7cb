#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/gpu_limits.h"
#include "engine/nn/workspace.h"
#include "engine/program/cost.h"

namespace dstrain {

/// Whose features a block works on.
enum class Works {
  on_images,  ///< kernels are listed, and no gradient of a weight is put off
  on_tokens,  ///< kernels follow from FLOPs and bytes (BlockCost::forward_kernels)
  in_layers,  ///< as on_tokens, with a backward in two parts (BlockCost::held_bytes)
};

/// Adds up what the layers of a block cost, in the order in which they run.
///
/// Each tensor is counted once: a layer counts what it keeps of its input, unless that is the
/// block's input or another layer keeps it. Kernels are those of a GPU (engine/kernels/README.md):
/// products, and passes for statistics, for normalisation with activation, and for gradients.
class LayerCosts {
 public:
  /// `limits`: of the device that runs them.
  LayerCosts(std::string block, int compute_bytes, Works works,
             const GpuLimits& limits = kCpuLimits);

  void add(LayerCost layer, std::vector<KernelCost> forward = {},
           std::vector<KernelCost> backward = {});
  /// To the layer added last.
  void add_to_last(const LayerCost& more);
  [[nodiscard]] const std::vector<LayerCost>& layers() const { return layers_; }
  /// For an operator that is no layer of its own.
  void add_kernels(std::vector<KernelCost> forward, std::vector<KernelCost> backward);
  /// Collectives of the layers, in their order.
  [[nodiscard]] std::vector<Exchange>& exchanges() { return cost_.exchanges; }

  /// Tensors that a layer's forward, and its backward, hold at once beside what is kept.
  void hold(Bytes forward, Bytes backward) { hold(forward, backward, backward); }
  /// `backward_kept`: where outputs of activation functions are kept (BlockCost::hidden_workspace).
  void hold(Bytes forward, Bytes backward, Bytes backward_kept);
  /// What was held so far is held, backward, when autograd has let go of so much that layers have
  /// saved since; `hidden`: of LayerCost::hidden_bytes.
  void let_go(Bytes saved, Bytes hidden = 0);
  /// Held all the while beside what layers hold.
  void hold_also(Bytes forward, Bytes backward);
  /// Layers that run one after the other, and what they hold at once.
  void add_branch(std::vector<LayerCost> layers, const Workspace& held);
  [[nodiscard]] Workspace held() const {
    return {.forward = cost_.forward_workspace, .backward = cost_.backward_workspace};
  }

  /// Its host waits for numbers of the device, and its products run on so many streams.
  void wait_on_host(int product_streams);

  /// A layer has this size; on a GPU its kernels take such ones alone (BlockCost::misfits).
  void require(SizeOf of, std::int64_t size, const TakenSizes& taken);
  [[nodiscard]] const GpuLimits& limits() const { return limits_; }

  /// Numbers that norm sums over the ranks (BlockCost::step_sums).
  void add_step_sums(std::int64_t numbers) { cost_.step_sums += numbers; }

  /// For counting some of the layers by themselves.
  [[nodiscard]] LayerCosts part() const { return {cost_.name, compute_bytes_, works_, limits_}; }
  [[nodiscard]] int compute_bytes() const { return compute_bytes_; }
  [[nodiscard]] bool on_images() const { return works_ == Works::on_images; }
  /// Cost of a block that gets `input` and hands on `output`. Layers of images leave the gradient
  /// of `input` to this.
  [[nodiscard]] BlockCost finish(const std::vector<BoundaryTensor>& input,
                                 std::vector<BoundaryTensor> output);

 private:
  int compute_bytes_;
  Works works_;
  GpuLimits limits_;
  Bytes backward_kept_ = 0;
  Bytes held_forward_ = 0, held_backward_ = 0;
  BlockCost cost_;
  std::vector<LayerCost> layers_;
};

}  // namespace dstrain
