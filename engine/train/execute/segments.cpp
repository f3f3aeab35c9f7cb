#include "engine/train/execute/segments.h"

#include <algorithm>
#include <iterator>

#include "engine/base/index.h"
#include "engine/program/activation_memory.h"
#include "engine/program/phases.h"

namespace dstrain {
namespace {

/// About 20 kernels each: some 100 MiB of graphs.
constexpr std::size_t kMaxRecorded = 8192;

/// Exchanges of experts read on the host. Those of tensor ranks, by copies and by NCCL, gain
/// nothing from graphs (engine/kernels/TRIED.md) but where two micro-batches run at once: there
/// the host would be too slow.
bool exchanges_in_graph(const Action& action, bool two_at_once) {
  return std::ranges::all_of(action.comm, [&](const Comm& comm) {
    return comm.axis == Axis::sequence || (comm.axis == Axis::tensor && two_at_once);
  });
}

bool recordable(const Action& action, bool two_at_once) {
  using enum ActionKind;
  return exchanges_in_graph(action, two_at_once) &&
         (runs_block(action.kind) || action.kind == clear || action.kind == release);
}

/// Those of one lane.
std::vector<Segment> segments_of(Lane lane, const Program& program) {
  const bool two_at_once = runs_two_at_once(program);
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
    if (action.lane != lane) continue;
    if (!recordable(action, two_at_once)) {
      close();
      continue;
    }
    // Between the phases a step is timed.
    const std::optional<Phase> own = kind_row(action.kind).phase;
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

}  // namespace

std::vector<Segment> find_segments(const Program& program) {
  std::vector<Segment> all = segments_of(Lane::compute, program);
  std::ranges::move(segments_of(Lane::compute_beside, program), std::back_inserter(all));
  return all;
}

bool worth_recording(const Program& program, const ModelCost& cost) {
  const bool two_at_once = runs_two_at_once(program);
  const auto communicates = [&](const Action& a) {
    return transfers(a.kind) || (runs_block(a.kind) && !exchanges_in_graph(a, two_at_once));
  };
  if (has_transient_slots(program) || std::ranges::any_of(cost.blocks, &BlockCost::host_reads) ||
      std::ranges::any_of(program.actions, communicates))
    return false;
  const auto recorded =
      static_cast<std::size_t>(std::ranges::count_if(program.actions, [&](const Action& a) {
        return a.block >= 0 && recordable(a, two_at_once);
      }));
  const std::size_t buffers = program.batches().size();
  const bool one_phase = to_index(program.micro_batches) % buffers == 0;
  return recorded * (one_phase ? 1 : buffers) <= kMaxRecorded;
}

}  // namespace dstrain
