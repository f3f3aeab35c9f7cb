#include <algorithm>

#include "engine/base/index.h"
#include "engine/program/simulate.h"

namespace dstrain {
namespace {

/// Bytes of activations that live while the compute lane walks through the list.
class Activations {
 public:
  explicit Activations(const Program& program, const ModelCost& cost) : cost_(cost) {
    const std::size_t size = to_index(program.micro_batches) * cost.blocks.size();
    recomputed_.assign(size, false);
    kept_.assign(size, false);
    for (const Action& action : program.actions) {
      if (action.kind == ActionKind::recompute) {
        recomputed_[place(action.micro_batch, action.block)] = true;
      }
      if (action.kind == ActionKind::backward)
        kept_[place(action.micro_batch, action.block)] = true;
    }
  }

  void play(const Action& action) {
    const BlockCost& block = cost_.blocks[to_index(action.block)];
    const Bytes input =
        action.block > 0 ? cost_.blocks[to_index(action.block) - 1].boundary_bytes : 0;
    const Bytes output = block.boundary_bytes;
    if (action.kind == ActionKind::forward) {
      touch(block.saved_bytes + output + block.forward_workspace);
      live_ += output;
      const bool kept = this->kept(action.micro_batch, action.block);
      if (kept && !recomputed(action.micro_batch, action.block)) live_ += block.saved_bytes;
      if (!kept) live_ -= input;
    } else if (action.kind == ActionKind::recompute) {
      // The gradient of the block's output is already there.
      touch(block.saved_bytes + 2 * output + block.forward_workspace);
      live_ += block.saved_bytes + output;
    } else if (action.kind == ActionKind::backward) {
      touch(output +
            block.backward_workspace);  // the gradient of the output, and what backward needs
      live_ -= block.saved_bytes + output;
      // The block before makes its output anew, or has no backward that would end it.
      const int before = action.block - 1;
      if (before >= 0 &&
          (recomputed(action.micro_batch, before) || !kept(action.micro_batch, before)))
        live_ -= input;
    }
  }

  [[nodiscard]] Bytes peak() const { return peak_; }

 private:
  [[nodiscard]] std::size_t place(int micro_batch, int block) const {
    return to_index(micro_batch) * cost_.blocks.size() + to_index(block);
  }
  [[nodiscard]] bool recomputed(int micro_batch, int block) const {
    return recomputed_[place(micro_batch, block)];
  }
  /// Whether the block has a backward, and so keeps what that needs.
  [[nodiscard]] bool kept(int micro_batch, int block) const {
    return kept_[place(micro_batch, block)];
  }
  void touch(Bytes transient) { peak_ = std::max(peak_, live_ + transient); }

  const ModelCost& cost_;
  std::vector<bool> recomputed_;  ///< [micro-batch, block]
  std::vector<bool> kept_;        ///< [micro-batch, block]
  Bytes live_ = 0;
  Bytes peak_ = 0;
};

/// Beside the slots: what the reduction needs for the group with the largest buffer.
Bytes reduction_buffers(const Program& program, const Layout& layout) {
  Bytes staging = 0;
  Bytes wire = 0;
  for (std::size_t g = 0; g < layout.flat.size(); ++g) {
    const int group = static_cast<int>(g);
    // The sum of one micro-batch lands here before it is added to the gradient at rest.
    if (layout.reduced_from_slot(group) && program.micro_batches > 1) {
      staging = std::max(staging, layout.flat[g].shard_size() * layout.widths.gradient);
    }
    if (layout.groups[g].trainable && layout.widths.reduce_wire < layout.widths.gradient) {
      wire = std::max(wire, layout.reduce_bytes(group));
    }
  }
  return staging + wire;
}

}  // namespace

Ledger peak_memory(const Program& program, const Layout& layout, const ModelCost& cost) {
  Ledger ledger;
  const StateWidths& widths = layout.widths;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const auto held = [&](Partition partition) {
      return partition == Partition::sharded ? layout.flat[g].shard_size()
                                             : layout.flat[g].padded();
    };
    ledger.parameters += held(layout.groups[g].parameters) * widths.compute;
    if (!layout.groups[g].trainable) continue;
    ledger.gradients += held(layout.groups[g].gradients) * widths.gradient;
    ledger.master += held(layout.groups[g].states) * widths.master;
    ledger.moments += held(layout.groups[g].states) * widths.moments;
  }
  for (const std::int64_t elements : program.gather_slots)
    ledger.gather_buffers += elements * widths.compute;
  for (const std::int64_t elements : program.gradient_slots)
    ledger.gradient_buffers += elements * widths.gradient;
  const bool reduces =
      std::any_of(program.actions.begin(), program.actions.end(),
                  [](const Action& action) { return action.kind == ActionKind::reduce; });
  if (reduces) ledger.gradient_buffers += reduction_buffers(program, layout);
  ledger.data = kBatchSlots * cost.batch_bytes;

  Activations activations(program, cost);
  for (const Action& action : program.actions) {
    if (action.block >= 0) activations.play(action);
  }
  ledger.activations = activations.peak();
  return ledger;
}

}  // namespace dstrain
