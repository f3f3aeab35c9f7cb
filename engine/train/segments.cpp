#include "engine/train/segments.h"

#include <algorithm>
#include <set>

#include "engine/base/index.h"
#include "engine/program/phases.h"

namespace dstrain {
namespace {

/// About 20 kernels each: some 100 MiB of graphs.
constexpr std::size_t kMaxRecorded = 8192;

/// Which actions a graph may hold.
class Recordable {
 public:
  explicit Recordable(const ModelCost& cost) : blocks_(cost.blocks.size()) {
    for (std::size_t b = 0; b < cost.blocks.size(); ++b) {
      blocks_[b] = !cost.blocks[b].host_reads;
      if (blocks_[b]) continue;
      // What the host remembers of their gradients is not replayed.
      read_.insert(cost.blocks[b].groups.begin(), cost.blocks[b].groups.end());
    }
  }

  [[nodiscard]] bool operator()(const Action& action) const {
    using enum ActionKind;
    if (!action.comm.empty()) return false;
    if (action.kind == clear || action.kind == release) return !read_.contains(action.group);
    const bool same_in_each_step = action.kind == forward || action.kind == recompute ||
                                   action.kind == backward || action.kind == backward_input ||
                                   action.kind == backward_weight;
    return same_in_each_step && blocks_[to_index(action.block)];
  }

 private:
  std::vector<bool> blocks_;
  std::set<int> read_;  ///< groups of blocks that no graph holds
};

}  // namespace

std::vector<Segment> find_segments(const Program& program, const ModelCost& cost) {
  const Recordable recordable(cost);
  std::vector<bool> awaited(program.actions.size());
  for (const Action& action : program.actions) {
    for (const int other : action.after) awaited[to_index(other)] = true;
    for (const int other : action.after_previous) awaited[to_index(other)] = true;
  }
  std::vector<Segment> segments;
  Segment open;
  bool runs_block = false;
  std::optional<Phase> phase;  // of the open segment's blocks
  const auto close = [&] {
    if (runs_block) segments.push_back(std::move(open));
    open = {};
    runs_block = false;
    phase.reset();
  };
  for (int i = 0; i < static_cast<int>(program.actions.size()); ++i) {
    const Action& action = program.actions[to_index(i)];
    if (action.lane != Lane::compute) continue;
    if (!recordable(action)) {
      close();
      continue;
    }
    // Between the phases a step is timed.
    const std::optional<Phase> own = phase_of(action.kind);
    if (runs_block && own && phase && *own != *phase) close();
    // A wait may be moved before a clear or a release, but not before the work of a block.
    const auto enqueued_later = [&](int other) { return other >= open.actions.front(); };
    if (!open.actions.empty() && !(action.after.empty() && action.after_previous.empty()) &&
        (runs_block || std::ranges::any_of(action.after, enqueued_later)))
      close();
    open.actions.push_back(i);
    runs_block = runs_block || action.block >= 0;
    if (own) phase = own;
    if (awaited[to_index(i)]) close();
  }
  close();
  return segments;
}

bool worth_recording(const Program& program, const ModelCost& cost) {
  const Recordable recordable(cost);
  const auto recorded = static_cast<std::size_t>(std::ranges::count_if(
      program.actions, [&](const Action& a) { return a.block >= 0 && recordable(a); }));
  const std::size_t buffers = program.buffers_of(BufferRole::batch).size();
  const bool one_phase = to_index(program.micro_batches) % buffers == 0;
  return recorded * (one_phase ? 1 : buffers) <= kMaxRecorded;
}

}  // namespace dstrain
