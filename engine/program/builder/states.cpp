#include "engine/program/builder/states.h"

#include <algorithm>
#include <utility>

namespace dstrain::builder {
namespace {

/// One part arrives, one is updated, one leaves.
constexpr int kSlots = 3;

}  // namespace

States::States(Writer& writer, const std::vector<GroupUse>& uses)
    : writer_(writer), uses_(uses), committed_(uses.size(), -1) {
  if (writer.training()) add_slots();
}

/// Slots of the size that the largest part needs.
void States::add_slots() {
  const Layout& layout = writer_.layout;
  const auto add = [&](UpdateMethod method, BufferRole role, Place place, Ring& ring,
                       int (*width)(const GroupLayout&, const StateWidths&)) {
    Bytes bytes = 0;
    int parts = 0;
    for (int g = 0; g < writer_.num_groups(); ++g) {
      const GroupLayout& kind = layout.groups[to_index(g)];
      if (uses_[to_index(g)].first_block < 0 || !kind.trainable || kind.update_method != method)
        continue;
      parts += layout.parts(g);
      bytes = std::max(bytes, layout.part(g, 0).size() * width(kind, layout.widths));
    }
    if (bytes == 0) return;
    for (int slot = 0; slot < std::min(kSlots, parts); ++slot) {
      const int id = writer_.add_buffer(role, -1, bytes, 1);
      writer_.program.buffers[to_index(id)].place = place;
      ring.slots.push_back(id);
    }
  };
  add(UpdateMethod::streamed, BufferRole::state_slot, Place::device, device_, state_slot_width);
  add(UpdateMethod::host, BufferRole::gradient_slot, Place::pinned, host_, gradient_slot_width);
}

std::pair<int, std::optional<int>> States::take(Ring& ring) const {
  const int slot = ring.slots[ring.next];
  ring.next = (ring.next + 1) % ring.slots.size();
  const auto freed = ring.freed_by.find(slot);
  return {slot, freed == ring.freed_by.end() ? std::nullopt : std::optional(freed->second)};
}

std::vector<int> States::resting_states(int group) const {
  const Resting& resting = writer_.resting[to_index(group)];
  std::vector<int> ids;
  if (resting.master >= 0) ids.push_back(resting.master);
  ids.push_back(resting.moments);
  return ids;
}

int States::add(ActionKind kind, Lane lane, int group, int part, Action action) {
  action.lane = lane;
  action.group = group;
  action.part = part;
  return writer_.add(kind, std::move(action));
}

void States::wait_for_sum(int group, Action& action) const {
  if (const int sum = gathered_sums_[to_index(group)]; sum >= 0) action.after.push_back(sum);
}

void States::update_whole(int group) {
  const Resting& resting = writer_.resting[to_index(group)];
  const GroupLayout& kind = writer_.layout.groups[to_index(group)];
  Action update{.group = group,
                .reads = {resting.gradient},
                .writes = {resting.parameters},
                .workspace = kind.matrix_workspace,
                .flops = kind.matrix_flops};
  wait_for_sum(group, update);
  for (const int id : resting_states(group)) update.writes.push_back(id);
  if (resting.average >= 0) update.writes.push_back(resting.average);
  committed_[to_index(group)] = writer_.add(ActionKind::update, std::move(update));
}

void States::stream(int group, int part, int norm) {
  const Resting& resting = writer_.resting[to_index(group)];
  const GroupLayout& kind = writer_.layout.groups[to_index(group)];
  const bool states_travel = kind.state_place != Place::device;
  const bool parameters_travel = kind.parameter_place != Place::device;
  std::vector<int> fetched, evicted;
  if (states_travel) fetched = evicted = resting_states(group);
  if (parameters_travel) {
    evicted.push_back(resting.parameters);
    if (writer_.layout.widths.parameters_are_states()) fetched.push_back(resting.parameters);
  }
  const auto [slot, freed] = take(device_);
  Action update{.reads = {resting.gradient}, .writes = {slot}, .after = {norm}};
  wait_for_sum(group, update);
  if (!parameters_travel) update.writes.push_back(resting.parameters);
  if (!states_travel) {
    for (const int id : resting_states(group)) update.writes.push_back(id);
  }
  std::vector<int> after;
  if (freed) after.push_back(*freed);
  if (fetched.empty()) {
    // The update fills the slot itself, with new parameters.
    update.after.insert(update.after.end(), after.begin(), after.end());
  } else {
    const int fetch = add(ActionKind::fetch_states, Lane::fetch, group, part,
                          {.reads = fetched, .writes = {slot}, .after = std::move(after)});
    device_.filled_by.try_emplace(slot, fetch);
    update.after.push_back(fetch);
  }
  const int updated = add(ActionKind::update, Lane::update, group, part, std::move(update));
  device_.filled_by.try_emplace(slot, updated);
  const int evict = add(ActionKind::evict_states, Lane::evict, group, part,
                        {.reads = {slot}, .writes = evicted, .frees = {slot}, .after = {updated}});
  device_.freed_by[slot] = evict;
  committed_[to_index(group)] = parameters_travel ? evict : updated;
}

void States::update_on_host(int group, int part, int norm) {
  const Resting& resting = writer_.resting[to_index(group)];
  const GroupLayout& kind = writer_.layout.groups[to_index(group)];
  const bool parameters_travel = kind.parameter_place == Place::device;
  const auto [slot, freed] = take(host_);
  Action evict{.reads = {resting.gradient}, .writes = {slot}, .after = {norm}};
  wait_for_sum(group, evict);
  if (parameters_travel && writer_.layout.widths.parameters_are_states())
    evict.reads.push_back(resting.parameters);
  if (freed) evict.after.push_back(*freed);
  const int evicted = add(ActionKind::evict_states, Lane::host_out, group, part, std::move(evict));
  host_.filled_by.try_emplace(slot, evicted);
  Action update{.writes = resting_states(group), .after = {evicted}};
  if (parameters_travel) {
    update.writes.push_back(slot);
  } else {
    update.reads.push_back(slot);
    update.writes.push_back(resting.parameters);
    update.frees.push_back(slot);
  }
  int last = add(ActionKind::update, Lane::host, group, part, std::move(update));
  if (parameters_travel) {
    last = add(ActionKind::fetch_states, Lane::host_in, group, part,
               {.reads = {slot}, .writes = {resting.parameters}, .frees = {slot}, .after = {last}});
  }
  host_.freed_by[slot] = last;
  committed_[to_index(group)] = last;
}

void States::finish(int norm, const std::vector<int>& gathered_sums) {
  gathered_sums_ = gathered_sums;
  std::vector<int> groups;
  for (int g = 0; g < writer_.num_groups(); ++g) {
    if (writer_.resting[to_index(g)].gradient >= 0) groups.push_back(g);
  }
  // While the last sums are gathered, those are updated that came before; offloaded states go on
  // beside the next step, which begins with the first group.
  std::ranges::stable_sort(groups, {}, [&](int g) {
    const bool whole = writer_.layout.groups[to_index(g)].update_method == UpdateMethod::device;
    return whole ? gathered_sums[to_index(g)] : -1;
  });
  for (const int g : groups) {
    switch (writer_.layout.groups[to_index(g)].update_method) {
      case UpdateMethod::device:
        update_whole(g);
        break;
      case UpdateMethod::streamed:
        for (int part = 0; part < writer_.layout.parts(g); ++part) stream(g, part, norm);
        break;
      case UpdateMethod::host:
        for (int part = 0; part < writer_.layout.parts(g); ++part) update_on_host(g, part, norm);
        break;
    }
  }
}

void States::close() {
  for (const Ring* ring : {&device_, &host_}) {
    for (const auto& [slot, action] : ring->filled_by)
      writer_.action(action).after_previous.push_back(ring->freed_by.at(slot));
  }
}

}  // namespace dstrain::builder
