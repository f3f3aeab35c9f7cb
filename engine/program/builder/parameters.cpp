#include "engine/program/builder/parameters.h"

#include <algorithm>
#include <map>

namespace dstrain::builder {

Parameters::Parameters(Writer& writer, const std::vector<GroupUse>& uses)
    : writer_(writer),
      uses_(uses),
      lookahead_(writer.options.prefetch),
      own_slot_(uses.size(), -1),
      held_(uses.size()) {
  add_slots();
}

void Parameters::add_slots() {
  const Layout& layout = writer_.layout;
  int pooled = 0;
  std::int64_t largest = 0;
  for (int g = 0; g < writer_.num_groups(); ++g) {
    if (uses_[to_index(g)].first_block < 0 || uses_[to_index(g)].shared) continue;
    if (!layout.gathered_into_slot(g)) continue;
    ++pooled;
    largest = std::max(largest, layout.flat[to_index(g)].padded());
  }
  // Groups in use, `prefetch` blocks ahead, one whose last reader may still run.
  const int slots =
      std::min((writer_.options.prefetch + 2) * max_own_groups(writer_, uses_), pooled);
  if (pooled > 0) lookahead_ = std::min(writer_.options.prefetch, slots - 1);
  // Each group has a slot of its own: gathered once, it stays.
  if (slots == pooled && pooled > 0) lookahead_ = static_cast<int>(writer_.visits.size());
  const auto add = [&](std::int64_t elements) {
    return writer_.add_buffer(BufferRole::gathered, -1, elements, layout.widths.compute);
  };
  for (int slot = 0; slot < slots; ++slot) free_slots_.push_back({add(largest), {}});
  for (int g = 0; g < writer_.num_groups(); ++g) {
    if (uses_[to_index(g)].shared && layout.gathered_into_slot(g))
      own_slot_[to_index(g)] = add(layout.flat[to_index(g)].padded());
  }
}

/// Makes sure that the parameters of a visit are gathered or on their way; false when no slot is
/// free yet.
bool Parameters::gather_for(int visit) {
  for (const int group : writer_.groups_of(writer_.visits[to_index(visit)].block)) {
    if (!gather(group, visit)) return false;
  }
  return true;
}

bool Parameters::gather(int group, int visit) {
  const Layout& layout = writer_.layout;
  Held& held = held_[to_index(group)];
  const GroupUse& use = uses_[to_index(group)];
  if (!layout.gathered(group)) return true;
  const bool into_slot = layout.gathered_into_slot(group);
  // The parameters at rest are made whole before an evaluation begins.
  if (!writer_.training() && !into_slot) return true;
  if (held.held) {
    held.last_visit = std::max(held.last_visit, visit);
    return true;
  }
  const int resting = writer_.resting[to_index(group)].parameters;
  Action action{.group = group};
  int buffer = resting;
  if (into_slot) {
    if (use.shared) {
      buffer = own_slot_[to_index(group)];
    } else if (free_slots_.empty()) {
      return false;
    } else {
      const FreeSlot slot = free_slots_.front();
      free_slots_.pop_front();
      buffer = slot.slot;
      if (slot.released_by) action.after.push_back(*slot.released_by);
    }
    action.reads = {resting};
  }
  action.writes = {buffer};
  held = {.held = true,
          .buffer = buffer,
          .last_visit = use.shared ? use.last_visit : visit,
          .awaited = {}};
  held.awaited = writer_.add(ActionKind::gather, std::move(action));
  return true;
}

void Parameters::before(int visit) {
  const std::vector<Visit>& visits = writer_.visits;
  int blocks = 0;
  for (std::size_t v = to_index(visit); v < visits.size(); ++v) {
    if (v > to_index(visit) && visits[v].block != visits[v - 1].block) ++blocks;
    if (blocks > lookahead_ || !gather_for(static_cast<int>(v))) return;
  }
}

void Parameters::wait(int block, Action& action) {
  for (const int group : writer_.groups_of(block)) {
    Held& held = held_[to_index(group)];
    if (held.awaited) action.after.push_back(*held.awaited);
    held.awaited.reset();
  }
}

void Parameters::after(int visit) {
  for (const int group : writer_.groups_of(writer_.visits[to_index(visit)].block)) {
    if (!writer_.layout.gathered_into_slot(group)) continue;
    Held& held = held_[to_index(group)];
    if (held.last_visit > visit) continue;
    const int released_by =
        writer_.add(ActionKind::release, {.group = group, .frees = {held.buffer}});
    if (!uses_[to_index(group)].shared) free_slots_.push_back({held.buffer, released_by});
    held = {};
  }
}

int Parameters::buffer(int group) const {
  return writer_.layout.gathered_into_slot(group) ? held_[to_index(group)].buffer
                                                  : writer_.resting[to_index(group)].parameters;
}

/// A gather reads what the update before it wrote, and overwrites what the release before it let
/// go. Gathers run in turn, so a wait for an earlier action than one waited for already says
/// nothing; and a wait for the compute lane in this run is one for all of the run before.
void Parameters::close() {
  std::map<int, int> update, released;  // by group and by buffer: the last of them
  for (int i = 0; i < static_cast<int>(writer_.program.actions.size()); ++i) {
    const Action& action = writer_.action(i);
    if (action.kind == ActionKind::update) update[action.group] = i;
    if (action.kind == ActionKind::release) released[action.frees.front()] = i;
  }
  int waited = -1;
  for (Action& action : writer_.program.actions) {
    if (action.kind != ActionKind::gather) continue;
    if (!action.after.empty()) return;
    int last = -1;
    if (const auto found = update.find(action.group); found != update.end()) last = found->second;
    if (const auto found = released.find(action.writes.front()); found != released.end())
      last = std::max(last, found->second);
    if (last <= waited) continue;
    waited = last;
    action.after_previous.push_back(last);
  }
}

void gather_resident(Writer& writer) {
  for (int g = 0; g < writer.num_groups(); ++g) {
    const int resting = writer.resting[to_index(g)].parameters;
    if (writer.layout.gathered(g) && !writer.layout.gathered_into_slot(g) && resting >= 0)
      writer.add(ActionKind::gather, {.group = g, .writes = {resting}});
  }
}

}  // namespace dstrain::builder
