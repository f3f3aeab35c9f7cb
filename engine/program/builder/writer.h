#pragma once

#include <utility>
#include <vector>

#include "engine/base/index.h"
#include "engine/program/block_visits.h"
#include "engine/program/coordinate_part.h"
#include "engine/program/program.h"

/// The parts of a program's builder. They walk over the visits of the compute lane together and
/// write actions in an order that is correct on its own. What runs on another lane is written as
/// early as its buffers allow, and is waited for as late as its result is needed.
namespace dstrain::builder {

/// Buffers of a group's state at rest; -1: there is none.
struct Resting {
  int parameters = -1;
  int gradient = -1;
  std::vector<int> states = {};  ///< that updates change: master weights, and moments
  int average = -1;
};

/// The program under way and what its parts share.
struct Writer {
  Writer(ProgramKind kind, const Layout& layout_in, const ModelCost& cost_in,
         const ProgramOptions& options_in, int coordinate, const PipelineSchedule& schedule_in)
      : layout(layout_in),
        cost(cost_in),
        options(options_in),
        schedule(schedule_in),
        own(layout_in, cost_in, coordinate),
        first_trained(kind == ProgramKind::training ? first_trained_block(cost_in) : 0) {
    if (!schedule.empty())
      visits = block_visits(schedule.at(to_index(coordinate)), layout, cost, first_trained);
    if (options.two_at_once) visits = dstrain::two_at_once(visits);
    program.kind = kind;
    program.micro_batches = options.micro_batches;
    program.coordinate = coordinate;
    program.keeps_hidden = options.keep_hidden && training();
  }

  int add(ActionKind kind, Action action) {
    action.kind = kind;
    if (action.lane == Lane::compute) action.lane = kind_row(kind).lanes.front();
    write_work(action);
    program.actions.push_back(std::move(action));
    return static_cast<int>(program.actions.size()) - 1;
  }
  /// Sets the work of an action that has all its buffers, and its collectives.
  void write_work(Action& action) const;
  int add_buffer(BufferRole role, int owner, std::int64_t elements, int width) {
    program.buffers.push_back({.role = role, .owner = owner, .elements = elements, .width = width});
    return static_cast<int>(program.buffers.size()) - 1;
  }
  [[nodiscard]] const Action& action(int index) const { return program.actions[to_index(index)]; }
  [[nodiscard]] Action& action(int index) { return program.actions[to_index(index)]; }
  /// The lane of the blocks of a micro-batch.
  [[nodiscard]] Lane lane_of(int micro_batch) const {
    return options.two_at_once && micro_batch % 2 != 0 ? Lane::compute_beside : Lane::compute;
  }
  [[nodiscard]] bool training() const { return program.kind == ProgramKind::training; }
  [[nodiscard]] int num_groups() const { return static_cast<int>(cost.groups.size()); }
  [[nodiscard]] int num_blocks() const { return static_cast<int>(cost.blocks.size()); }
  [[nodiscard]] const std::vector<int>& groups_of(int block) const {
    return cost.blocks[to_index(block)].groups;
  }
  [[nodiscard]] bool has_backward(int block) const { return training() && block >= first_trained; }
  /// Its output stays until its own backward.
  [[nodiscard]] bool keeps_output(int block) const {
    return own.local(block) && has_backward(block) && !recomputed(block);
  }
  /// The last block of this rank that reads a batch: where it runs backward, the first such block.
  [[nodiscard]] int last_reader() const {
    int last_forward = -1;
    for (int b = 0; b < num_blocks(); ++b) {
      if (!own.local(b)) continue;
      if (has_backward(b)) return b;
      last_forward = b;
    }
    return last_forward;
  }
  /// The state of streamed parts that waits in the gradient's memory (ProgramOptions::park_state):
  /// the last one as wide as that, where others leave their slots before it; -1: none.
  [[nodiscard]] int parked_state(int group) const;
  /// The block reads what another rank sends, which stays until all of its backward has run.
  [[nodiscard]] bool receives_input(int block) const { return block > 0 && !own.local(block - 1); }
  [[nodiscard]] bool recomputed(int block) const {
    const bool head = block + 1 == num_blocks();
    return !head && to_index(block) < options.recompute.size() &&
           options.recompute[to_index(block)] && has_backward(block);
  }

  const Layout& layout;
  const ModelCost& cost;
  const ProgramOptions& options;
  const PipelineSchedule& schedule;  ///< of the line; empty: no block runs
  const CoordinatePart own;
  const int first_trained;    ///< block
  std::vector<Visit> visits;  ///< of this rank
  Program program;
  std::vector<Resting> resting;  ///< by group
  std::vector<int> block_state;  ///< buffers, by block; -1: it has none
};

/// What never changes about a group.
struct GroupUse {
  int first_block = -1;  ///< of those that read it; its backward is the group's last
  int readers = 0;       ///< blocks
  int last_block = -1;   ///< of those that read it
  /// Read by blocks with others between them: it has slots of its own and stays in them.
  bool shared = false;
  int last_visit = -1;  ///< of the whole program
};
[[nodiscard]] std::vector<GroupUse> group_uses(const Writer& writer);
/// The largest number of groups that one block reads and no other does, at least 1.
[[nodiscard]] int max_own_groups(const Writer& writer, const std::vector<GroupUse>& uses);

}  // namespace dstrain::builder
