#include "engine/program/activation_memory.h"

#include <algorithm>
#include <map>

#include "engine/base/index.h"
#include "engine/program/lane_order.h"

namespace dstrain {
namespace {

bool is_activation(const Buffer& buffer) {
  return buffer.place == Place::device && role_row(buffer.role).activation;
}

bool names(const std::vector<int>& ids, int id) { return std::ranges::find(ids, id) != ids.end(); }

/// Bytes of the buffers in the list.
Bytes activations_in(const std::vector<int>& ids, const Program& program) {
  Bytes sum = 0;
  for (const int id : ids) {
    const Buffer& buffer = program.buffers[to_index(id)];
    if (is_activation(buffer)) sum += buffer.bytes();
  }
  return sum;
}

Bytes sum_of_lane_peaks(const Program& program) {
  struct Memory {
    Bytes live = 0, peak = 0;
  };
  std::map<Lane, Memory> lanes;
  for (const Action& action : program.actions) {
    Memory& own = lanes[action.lane];
    own.live += activations_in(action.writes, program);
    own.peak = std::max(own.peak, own.live + action.workspace);
    own.live -= activations_in(action.frees, program);
  }
  Bytes sum = 0;
  for (const auto& [lane, own] : lanes) sum += own.peak;
  return sum;
}

}  // namespace

std::vector<Bytes> activation_memory(const Program& program) {
  std::vector<Bytes> all;
  all.reserve(program.actions.size());
  Bytes live = 0;
  for (const Action& action : program.actions) {
    live += activations_in(action.writes, program);
    all.push_back(live + action.workspace);
    live -= activations_in(action.frees, program);
  }
  return all;
}

bool has_transient_slots(const Program& program) {
  return std::ranges::any_of(program.buffers, &Buffer::transient);
}

std::vector<TransientSlot> transient_slots(const Program& program) {
  std::vector<TransientSlot> slots;
  for (int id = 0; id < static_cast<int>(program.buffers.size()); ++id)
    if (program.buffers[to_index(id)].transient) slots.push_back({.buffer = id});
  if (slots.empty()) return slots;
  const LaneOrder order(program.actions, /*runs=*/2);
  const auto count = static_cast<int>(program.actions.size());
  for (TransientSlot& slot : slots) {
    int emptied = -1;
    for (int i = 0; i < count; ++i) {
      const Action& action = program.actions[to_index(i)];
      if (slot.taken < 0 && names(action.writes, slot.buffer)) slot.taken = i;
      if (names(action.frees, slot.buffer)) emptied = i;
    }
    for (int i = 0; emptied >= 0 && i < count && slot.returned < 0; ++i)
      if (computes(program.actions[to_index(i)].lane) && order.before(emptied, count + i))
        slot.returned = i;
  }
  return slots;
}

Bytes peak_activations(const Program& program) {
  if (runs_two_at_once(program)) return sum_of_lane_peaks(program);
  const std::vector<Bytes> activations = activation_memory(program);
  // What the slots hold from each action on, as differences.
  std::vector<Bytes> slots(activations.size() + 1);
  for (const TransientSlot& slot : transient_slots(program)) {
    const Bytes bytes = transient_memory(program.buffers[to_index(slot.buffer)].bytes());
    const bool kept = slot.taken < 0 || slot.returned < 0 || slot.returned > slot.taken;
    slots.front() += bytes;
    if (kept) continue;
    slots[to_index(slot.returned)] -= bytes;
    slots[to_index(slot.taken)] += bytes;
  }
  Bytes peak = 0, held = 0;
  for (std::size_t i = 0; i < activations.size(); ++i) {
    held += slots[i];
    peak = std::max(peak, activations[i] + held);
  }
  return peak;
}

}  // namespace dstrain
