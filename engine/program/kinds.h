#pragma once

#include <optional>
#include <span>

#include "engine/program/work.h"

/// Kinds of actions, lanes and roles of buffers: what is said of each stands in tables (kinds.cpp),
/// and code that need not tell one from another asks these.
namespace dstrain {

/// Actions of one lane run in list order; order across lanes is only `Action::after`.
enum class Lane {
  compute,
  gather,
  reduce,
  copy_in,
  send_down,
  send_up,
  receive_down,
  receive_up,
  copy_out,  ///< inputs of blocks to the host
  // States that the device updates in turn, in chunks.
  fetch,
  update,
  evict,
  // States that the CPU updates: gradients to it, its work, new parameters back.
  host_out,
  host,
  host_in,
  /// Blocks of every other micro-batch (ProgramOptions::two_at_once): they compute while those of
  /// the other one exchange.
  compute_beside,
};
inline constexpr int kNumLanes = 16;
[[nodiscard]] const char* lane_name(Lane lane);
/// The two lanes that run blocks.
[[nodiscard]] inline bool computes(Lane lane) {
  return lane == Lane::compute || lane == Lane::compute_beside;
}
/// The two lanes on which data ranks exchange parameters and gradients of groups.
[[nodiscard]] inline bool exchanges_groups(Lane lane) {
  return lane == Lane::gather || lane == Lane::reduce;
}
/// Work of the lane goes on beside the next step: updates of offloaded states.
[[nodiscard]] bool outlasts_step(Lane lane);

/// The parts of an optimizer step as people speak of them.
enum class Phase {
  forward,
  backward,  ///< recomputation included
  norm,
  update,
};

enum class ActionKind {
  load,        ///< next micro-batch to the device, augmented
  gather,      ///< whole parameters of a group from its shards
  release,     ///< frees the group's gathered parameters
  discard,     ///< frees the block's output, or the gradient of it, that has been sent
  forward,     ///< block forward; keeps what backward needs if it writes the block's saved tensors
  recompute,   ///< block forward again, keeping what backward needs
  clear,       ///< the group's whole gradient gets a buffer that holds nothing yet
  backward,    ///< block backward; adds to the gradients of its groups
  reduce,      ///< gradient of a group over the data ranks, added to its resting place
  gather_sum,  ///< the parts of a group's gradient that other ranks summed (Layout::splits_sum)
  norm,        ///< gradient norm, loss and counters: one small all-reduce; decides clip and skip
  update,      ///< optimizer on the rank's part of a group; divided matrices of a rule that updates
               ///< whole ones (Muon) are gathered in it
  // Moves of what rests in host memory or in a file.
  fetch_parameters,  ///< the rank's part of a group's parameters into its gathered slot
  fetch_states,      ///< part of a group: states into a slot, or new parameters to the device
  evict_states,      ///< part of a group: states from a slot, or the gradient from the device
  fetch_input,       ///< the output of `block` back to the device
  evict_input,       ///< the output of `block` to the host
  // Between neighbours of a pipeline: the output of `block`, or the gradient of that output. Down
  // is towards coordinate + 1, modulo the pipeline's ranks. Both directions of a link have lanes of
  // their own, as a rank that waits in one must go on in the other.
  send,
  receive,  ///< on the lane of the direction in which the other rank sends
  // A backward in two parts.
  backward_input,   ///< gradients of the block's inputs, and of weights that are no matrices
  backward_weight,  ///< gradients of its matrices
};

/// What an action names, or whom a buffer belongs to.
enum class Subject { none, group, block };

/// What is said of a kind of action.
struct KindRow {
  const char* name = "";        ///< in plans, traces and failure reports
  std::span<const Lane> lanes;  ///< that it may run on, the usual one first
  Subject subject = Subject::none;
  bool micro_batch = false;             ///< it names one
  bool part = false;                    ///< it names a part of an offloaded group
  std::optional<work::Pass> pass = {};  ///< of a run of a block
  /// That it begins or goes on with; none of release and discard, which belong to the phase they
  /// stand in, and of what runs beside.
  std::optional<Phase> phase = {};
  /// That an action which runs beside belongs to, wherever it stands.
  std::optional<Phase> serves = {};
  const char* purpose = "norm and metrics";  ///< of its collectives
};
[[nodiscard]] const KindRow& kind_row(ActionKind kind);
[[nodiscard]] inline const char* action_name(ActionKind kind) { return kind_row(kind).name; }
/// What a run of a block does; nothing where the action runs none.
[[nodiscard]] inline std::optional<work::Pass> pass_of(ActionKind kind) {
  return kind_row(kind).pass;
}
[[nodiscard]] inline bool runs_block(ActionKind kind) { return pass_of(kind).has_value(); }
/// A backward or the first part of one.
[[nodiscard]] inline bool runs_backward(work::Pass pass) {
  return pass == work::Pass::backward || pass == work::Pass::input;
}
/// Sends and receives.
[[nodiscard]] inline bool transfers(ActionKind kind) {
  return kind == ActionKind::send || kind == ActionKind::receive;
}
/// Norm, updates, and the moves of states around these.
[[nodiscard]] bool ends_step(ActionKind kind);

enum class BufferRole {
  parameters,       ///< of group `owner`, at rest
  gradient,         ///< of group `owner`, at rest
  master,           ///< of group `owner`
  moments,          ///< of group `owner`: one, or all where they differ in width
  average,          ///< of the weights of group `owner` over the steps
  batch,            ///< inputs of one micro-batch
  gathered,         ///< whole parameters of a group until they are released
  whole_gradient,   ///< gradient of a group until it is reduced
  shard_sum,        ///< reduced shard before it is added to the gradient at rest
  wire,             ///< gradient of a group in the width of the wire
  output,           ///< of block `owner`; exists from its write to its free
  saved,            ///< tensors that autograd keeps for block `owner`; exists as an output does
  output_gradient,  ///< of the output of block `owner`, the last one of a chunk
  block_state,      ///< untrained tensors of block `owner` and their averages, at rest; changed by
                    ///< forwards of a training step
  state_slot,       ///< part of a group's offloaded states while the device updates it
  gradient_slot,    ///< part of a group's gradient while the CPU updates by it, and the result
  host_input,       ///< output of block `owner` on the host, until its recomputation
  fetched_input,    ///< the same, back on the device
  second_shard,     ///< part of the parameters of group `owner`, from its first gather of a step to
                    ///< its last, which gather them from it
  coded_parameters,  ///< messages of a gather
  coded_gradient,    ///< messages of a reduction
  held,              ///< what block `owner` keeps from the first to the second part of its backward
};

/// What a buffer holds.
enum class Holds {
  parameters,
  state,  ///< master weights, moments or average
  gradient,
  batch,
  output,           ///< of a block
  saved,            ///< by a block
  held,             ///< from the first to the second part of a backward
  output_gradient,  ///< of a block's output
  block_state,      ///< untrained
};

/// How long a buffer holds what it holds.
enum class Keeps {
  run,     ///< state of the run from step to step
  action,  ///< inside one action only
  use,     ///< from the action that fills it to the one that frees it
};

/// What a buffer's elements are, where the executor allocates it.
enum class Elements {
  none,        ///< it does not: the state store, the source of batches or autograd has the memory
  parameters,  ///< in the compute type
  gradients,   ///< as they are held
  wire,        ///< bf16
  codes,       ///< bytes
  mixed,       ///< bytes of several types, which the offloader keeps
};

/// What is said of a role.
struct RoleRow {
  const char* name = "";
  Subject owner = Subject::none;
  Holds holds = Holds::batch;
  Keeps keeps = Keeps::use;
  Elements elements = Elements::none;
  bool activation = false;  ///< memory of the device that is allocated and freed as blocks run
  /// Parts of another kind may lie in it, too: a parked state, parameters that travel along.
  std::optional<Holds> also = {};
  bool coded = false;  ///< in messages
};
[[nodiscard]] const RoleRow& role_row(BufferRole role);
[[nodiscard]] inline const char* role_name(BufferRole role) { return role_row(role).name; }
/// Holds state of the run from step to step; others hold nothing until they are filled.
[[nodiscard]] inline bool at_rest(BufferRole role) { return role_row(role).keeps == Keeps::run; }

}  // namespace dstrain
