#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/program/kinds.h"
#include "engine/program/layout.h"
#include "engine/program/schedules/schedule.h"
#include "engine/program/work.h"

namespace dstrain {

/// Memory that actions read and write. All but activations and transient slots is allocated once.
struct Buffer {
  BufferRole role = BufferRole::parameters;
  int owner = -1;             ///< group or block, where the role names one
  std::int64_t elements = 0;  ///< bytes where the elements are of several widths
  int width = 1;              ///< bytes of an element
  Place place = Place::device;
  /// A slot of states that lies where activations leave room: it is allocated when the list comes
  /// to the action that fills it first, and freed when the list comes to the compute lane's first
  /// action that waits until it is empty (activation_memory.h).
  bool transient = false;
  int moment = -1;  ///< of the optimizer's, which one a buffer of moments holds; -1: all
  [[nodiscard]] Bytes bytes() const { return elements * width; }
  bool operator==(const Buffer&) const = default;
};

struct Action {
  ActionKind kind = ActionKind::load;
  Lane lane = Lane::compute;
  int block = -1;  ///< forward, recompute, backward, send, receive, discard
  int group = -1;  ///< gather, release, clear, reduce, gather_sum, update, fetch, evict
  int micro_batch = -1;
  int part = -1;  ///< of the group (Layout::part); -1: all of it
  /// What it does, in this order; nothing: it only frees.
  std::vector<Work> work{};
  std::vector<Comm> comm{};  ///< in the order in which they run; none over an axis of one rank
  /// Indices of Program::buffers. A buffer that is changed in place is written only.
  std::vector<int> reads{};
  std::vector<int> writes{};
  std::vector<int> frees{};  ///< hold nothing afterwards
  Bytes workspace = 0;       ///< transient device memory beside the buffers
  Flops flops = 0;
  Flops again_flops = 0;     ///< of these: work of a forward that is done once more
  std::vector<int> after{};  ///< indices, on other lanes, of actions that must have finished
  /// The same, of actions of the run before this one. A program that follows another one starts
  /// when that one has ended on all lanes.
  std::vector<int> after_previous{};

  bool operator==(const Action&) const = default;
};

/// fp32 numbers that norm sums over all ranks: squared norm, loss, top-1, top-5, targets, balance
/// loss, votes to stop, steps to trace.
inline constexpr int kNumStepSums = 8;

enum class ProgramKind {
  training,    ///< one optimizer step
  evaluation,  ///< forward of one micro-batch
  gathering,   ///< makes the parameters whole that rest whole and are updated in shards
};

/// The list of actions of one rank. It is run again and again; what the end of one run and the
/// beginning of the next may overlap is in the list (`Action::after_previous`). Batch buffers go on
/// in turn: in run r, buffer i of n stands for buffer (i + r * micro_batches) % n.
struct Program {
  ProgramKind kind = ProgramKind::training;
  std::vector<Action> actions;
  std::vector<Buffer> buffers;
  int micro_batches = 1;
  int coordinate = 0;         ///< of the rank on the pipeline axis
  bool peer_copies = false;   ///< ProgramOptions::peer_copies
  Bytes input_memory = 0;     ///< ProgramOptions::input_memory
  bool keeps_hidden = false;  ///< ProgramOptions::keep_hidden

  /// Indices of the buffers of one role, in order.
  [[nodiscard]] std::vector<int> buffers_of(BufferRole role) const;
  /// Those of micro-batches, which go on in turn.
  [[nodiscard]] std::vector<int> batches() const { return buffers_of(BufferRole::batch); }
  /// The one of `ids` with that role; -1: none.
  [[nodiscard]] int find(const std::vector<int>& ids, BufferRole role) const;
};

/// Whether states travel to the device and back.
[[nodiscard]] bool streams_states(const Program& program);

/// Whether blocks run on both lanes.
[[nodiscard]] bool runs_two_at_once(const Program& program);

struct ProgramOptions {
  int micro_batches = 1;  ///< accumulation steps, at least 1
  int prefetch = 1;       ///< blocks gathered ahead of their use, at least 0; ZeRO-3 has slots for
                          ///< the groups of two blocks more than that (builder/slot_pools.h)
  /// Per block: it keeps only its input and runs forward again before its backward. Blocks beyond
  /// the end of the list keep everything, and so does the head.
  std::vector<bool> recompute{};
  PipelineSchedule schedule = {};  ///< of a training step of a pipeline; empty: 1F1B
  Place inputs = Place::device;    ///< of recomputed blocks, until their backward
  /// Micro-batches run two at once, each on a lane of its own: while one exchanges inside a block
  /// the other computes. For groups that rest whole, without a pipeline or offload.
  bool two_at_once = false;
  /// Data ranks on GPUs of one host gather and reduce by copies between their memories.
  bool peer_copies = false;
  Bytes input_memory = 0;  ///< of the device, by what decodes images on it
  /// Memory is spent on time: blocks save what they else compute again in one pass with others
  /// (BlockCost::hidden_bytes), and the head of a language model makes logits of more rows at once.
  bool keep_hidden = false;
  /// Offloaded states that the device updates come in while backward frees activations, and go out
  /// beside the next forward, in slots beside the others that take no more memory than the peak of
  /// activations. Such a step runs without CUDA graphs, as these keep the memory of activations.
  bool transient_slots = false;
  /// A state of streamed parts that is as wide as the gradient leaves its slot for the gradient's
  /// memory, and that for the host when all slots are empty: up to the gradient's next use.
  bool park_state = false;
};

/// One optimizer step under `layout`. Gathers and reductions overlap compute as far as `after`
/// allows.
///
/// With a second shard, the first gather of a group in a step fills it, and later ones gather from
/// it.
///
/// ZeRO-1 and 2 gather each group once per step, before its first use, straight into the resident
/// parameters; ZeRO-3 gathers into slots before each use and releases after it, except that a group
/// stays which is used again at once (the last block from forward to backward, the first from one
/// micro-batch to the next) or within the prefetch distance; where every group has a slot, each is
/// gathered once per step. Gradients rest whole (stage 0, 1: reduced after the last micro-batch) or
/// sharded (2, 3: reduced after each). With one data rank there is neither gather nor reduce. A
/// group that several blocks read has slots of its own, and its gradient is reduced after the last
/// of them. Frozen groups have no gradient, and the backward pass ends at the first block that
/// trains anything.
///
/// The list is the same on every rank with one `coordinate` on the pipeline axis (layout.stages);
/// with one such coordinate, running it in list order on one lane is also correct. Where a chunk
/// begins or ends between ranks, outputs are received and sent, and their gradients. A visit of the
/// schedule that splits the backward does so for the blocks that can (`splits_backward`).
[[nodiscard]] Program training_program(const Layout& layout, const ModelCost& cost,
                                       const ProgramOptions& options, int coordinate = 0);
/// Forward of one micro-batch. Parameters that rest whole must be whole (gathering_program);
/// `options.micro_batches` and `recompute` are ignored.
[[nodiscard]] Program evaluation_program(const Layout& layout, const ModelCost& cost,
                                         const ProgramOptions& options, int coordinate = 0);
/// ZeRO-1 and 2: all-gathers of the resident parameters, as an evaluation after an update needs
/// them; else empty.
[[nodiscard]] Program gathering_program(const Layout& layout, const ModelCost& cost,
                                        int coordinate = 0);

/// Bytes of an element of a group that travel in a state slot, and in a gradient slot.
[[nodiscard]] int state_slot_width(const GroupLayout& group, const StateWidths& widths);
[[nodiscard]] int gradient_slot_width(const GroupLayout& group, const StateWidths& widths);

/// FLOPs of a run of a block. Backward counts as twice forward; a block that trains little of
/// itself is spared the products for the weights' gradients.
[[nodiscard]] Flops block_flops(work::Pass pass, int block, const Layout& layout,
                                const ModelCost& cost);

/// Bytes of the saved tensors of a block of `program`.
[[nodiscard]] Bytes saved_bytes(const BlockCost& block, const Program& program);

/// Bytes of block `block` that a run of it needs beside its buffers. `keeps`:
/// a forward writes the saved tensors; `keeps_hidden`: as the program's.
[[nodiscard]] Bytes workspace_of(work::Pass pass, const BlockCost& block, bool keeps,
                                 bool keeps_hidden = false);

/// Bytes of untrained tensors of block `block` and of their averages.
[[nodiscard]] Bytes block_state_bytes(int block, const Layout& layout, const ModelCost& cost);

/// The moments of a trained group on the rank that holds most of them: a buffer each; one of all
/// where those of matrices and of vectors differ in width.
[[nodiscard]] std::vector<Buffer> moments_of(int group, const Layout& layout);

/// The collectives inside a run of a block, and those inside the update of a group: of its
/// matrices, where these are divided into shards.
[[nodiscard]] std::vector<Comm> block_collectives(work::Pass pass, int block, ProgramKind program,
                                                  const Layout& layout, const ModelCost& cost);
[[nodiscard]] std::vector<Comm> update_collectives(int group, const Layout& layout);

/// An axis and the lane on which its collectives run; each pair has a communicator of its own, so
/// that lanes never wait for each other inside NCCL.
struct CommChannel {
  CommAxis axis = CommAxis::world;
  Lane lane = Lane::compute;
  auto operator<=>(const CommChannel&) const = default;
};
/// Those that the program uses, sorted.
[[nodiscard]] std::vector<CommChannel> channels(const Program& program);
/// The communicator of a channel on one rank.
struct ChannelGroup {
  CommChannel channel;
  std::string name;        ///< the same on all its ranks, and of no other group
  std::vector<int> ranks;  ///< of the world, in the order of their indices: of a link between
                           ///< stages, which sends one way, the sender and the receiver
};
/// Those of `channels` on `rank`, in an order in which all ranks may open theirs one after the
/// other.
[[nodiscard]] std::vector<ChannelGroup> channel_groups(const std::vector<CommChannel>& channels,
                                                       const Layout& layout, const Mesh& mesh,
                                                       int rank);

/// Rules that every program keeps; each broken one is a sentence. Empty = sound. Checked: fields
/// and lanes are those of the kind; buffers and collectives are those of the work, and the state at
/// rest is the layout's; no action waits for a later one, so that there is no cycle and list order
/// is an order of execution; uses of the same elements wait for each other where one changes them;
/// of each block one micro-batch comes after the other; norm comes after all blocks and before all
/// updates. Then that the work computes a step, in buffers that hold what is read and nothing that
/// is written over (meaning.h). Order is what lanes, `after` and `after_previous` guarantee,
/// transitively, over as many runs as use a batch buffer twice.
[[nodiscard]] std::vector<std::string> check(const Program& program, const Layout& layout,
                                             const ModelCost& cost);

/// The same for the programs of all coordinates of a pipeline, in order, and what they must keep
/// together: each send has its receive, of the same tensor and size, in the order of both lanes;
/// all ranks meet in the collectives of the whole line in one order; and no rank waits for another
/// one that waits for it, whatever the speeds, where a send takes until its receive.
[[nodiscard]] std::vector<std::string> check(const std::vector<Program>& line, const Layout& layout,
                                             const ModelCost& cost);

/// Equal exactly when the programs (and the layout they belong to) are; exchanged by the ranks
/// before the first step. Of a line of one program: that of the program.
[[nodiscard]] std::uint64_t hash(const Program& program, const Layout& layout);
[[nodiscard]] std::uint64_t hash(const std::vector<Program>& line, const Layout& layout);

/// FLOPs of forward and backward of a step, recomputation not counted: the mean of the ranks of a
/// pipeline.
[[nodiscard]] Flops useful_flops(const std::vector<Program>& line);

/// "backward(encoder.layer.7), micro-batch 2": for traces and failure reports.
[[nodiscard]] std::string describe(const Action& action, const ModelCost& cost);

}  // namespace dstrain
