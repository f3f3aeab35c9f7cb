#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/program/layout.h"

namespace dstrain {

enum class ActionKind {
  load,       ///< next micro-batch to the device, augmented
  gather,     ///< whole parameters of a group from its shards
  release,    ///< the group's gathered parameters may be overwritten
  forward,    ///< block forward; keeps what backward needs (with recompute: only its input)
  recompute,  ///< block forward again, keeping what backward needs
  clear,      ///< the group's whole gradient gets a buffer that holds nothing yet
  backward,   ///< block backward; adds to the gradients of its groups
  reduce,     ///< gradient of a group over the data ranks, added to its resting place
  norm,       ///< gradient norm, loss and counters: one small all-reduce; decides clip and skip
  update,     ///< optimizer on the rank's part of a group
};
[[nodiscard]] const char* action_name(ActionKind kind);

/// Actions of one lane run in list order; order across lanes is only `Action::after`.
enum class Lane { compute, gather, reduce, copy_in };
inline constexpr int kNumLanes = 4;
[[nodiscard]] const char* lane_name(Lane lane);
[[nodiscard]] Lane lane_of(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::load;
  Lane lane = Lane::compute;
  int block = -1;  ///< forward, recompute, backward
  int group = -1;  ///< gather, release, clear, reduce, update
  int micro_batch = -1;
  int slot = -1;    ///< gather, release: gather buffer, -1 = the group's own resident parameters;
                    ///< clear, reduce: gradient buffer, -1 = the group's own resident gradients;
                    ///< load: batch buffer, of which there are kBatchSlots
  Bytes bytes = 0;  ///< payload of the collective: size of the full buffer on the wire
  Flops flops = 0;
  std::vector<int> after{};  ///< indices, on other lanes, of actions that must have finished

  bool operator==(const Action&) const = default;
};

inline constexpr int kBatchSlots = 2;

/// The list of actions of one rank in one optimizer step (or one evaluation micro-batch).
struct Program {
  std::vector<Action> actions;
  int micro_batches = 1;
  /// Buffers that hold gathered parameters for a while, and whole gradients until they are reduced;
  /// elements of each.
  std::vector<std::int64_t> gather_slots;
  std::vector<std::int64_t> gradient_slots;
};

struct ProgramOptions {
  int micro_batches = 1;  ///< accumulation steps, at least 1
  int prefetch = 1;       ///< groups gathered ahead of their use, at least 0; ZeRO-3 has two gather
                          ///< slots more than that
  /// Per block: it keeps only its input and runs forward again before its backward. Blocks beyond
  /// the end of the list keep everything, and so does the head.
  std::vector<bool> recompute{};
};

/// One optimizer step under `layout`. Gathers and reductions overlap compute as far as `after`
/// allows.
///
/// ZeRO-1 and 2 gather each group once per step, before its first use, straight into the resident
/// parameters; ZeRO-3 gathers into slots before each use and releases after it, except that a group
/// stays which is used again at once (the last block from forward to backward, the first from one
/// micro-batch to the next) or within the prefetch distance; where every group has a slot, each is
/// gathered once per step. Gradients rest whole (stage 0, 1: reduced after the last micro-batch) or
/// sharded (2, 3: reduced after each). With one data rank there is neither gather nor reduce. A
/// group that several blocks read has slots of its own, and its gradient is reduced after the last
/// of them. Frozen groups have no gradient, and the backward pass ends at the first block that
/// trains anything. The list is the same on every rank, and running it in list order on one lane is
/// also correct.
[[nodiscard]] Program training_program(const Layout& layout, const ModelCost& cost,
                                       const ProgramOptions& options);
/// Forward of one micro-batch, parameters as at rest after an update; `options.micro_batches` and
/// `recompute` are ignored.
[[nodiscard]] Program evaluation_program(const Layout& layout, const ModelCost& cost,
                                         const ProgramOptions& options);

/// Rules that every program keeps; each broken one is a sentence. Empty = sound. Checked: block
/// order and pairing of forward and backward; parameters gathered before use and not released or
/// overwritten before it ends; a slot is never reused while an unfinished action may still read it
/// (across lanes, through `after`); every group's gradient of every micro-batch is reduced exactly
/// once and before norm; every group is updated exactly once, after norm; no action waits for a
/// later one, so that there is no cycle and list order is an order of execution. A program without
/// backward, reduce, norm and update is held to the rules of an evaluation. Order is what lanes and
/// `after` guarantee, transitively.
[[nodiscard]] std::vector<std::string> check(const Program& program, const Layout& layout,
                                             const ModelCost& cost);

/// Equal exactly when the programs (and the layout they belong to) are; exchanged by the ranks
/// before the first step.
[[nodiscard]] std::uint64_t hash(const Program& program, const Layout& layout);

/// FLOPs of forward and backward of one rank's step, recomputation not counted.
[[nodiscard]] Flops useful_flops(const Program& program);

/// "backward(encoder.layer.7), micro-batch 2": for traces and failure reports.
[[nodiscard]] std::string describe(const Action& action, const ModelCost& cost);

}  // namespace dstrain
