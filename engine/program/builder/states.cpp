#include "engine/program/builder/states.h"

#include <algorithm>
#include <utility>

#include "engine/program/activation_memory.h"

namespace dstrain::builder {
namespace {

/// One part arrives, one is updated, one leaves.
constexpr int kSlots = 3;

}  // namespace

SlotRoom slot_room(const Program& program) {
  const std::vector<int> slots = program.buffers_of(BufferRole::state_slot);
  // Two lanes have memory of their own, and none knows what the other holds.
  if (slots.empty() || runs_two_at_once(program)) return {};
  const auto fetched = std::ranges::count(program.actions, Lane::fetch, &Action::lane);
  if (fetched != std::ranges::count(program.actions, Lane::update, &Action::lane)) return {};
  const std::vector<Bytes> memory = activation_memory(program);
  const Bytes peak = std::ranges::max(memory);
  const Bytes slot = transient_memory(program.buffers[to_index(slots.front())].bytes());
  const auto room = [&](Bytes used) { return static_cast<int>((peak - used) / slot); };
  SlotRoom all;
  std::vector<std::size_t> blocks;
  for (std::size_t i = 0; i < memory.size(); ++i)
    if (runs_block(program.actions[i].kind)) blocks.push_back(i);
  Bytes used = 0;
  std::size_t i = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::size_t next = b + 1 < blocks.size() ? blocks[b + 1] : blocks[b] + 1;
    for (; i < next; ++i) used = std::max(used, memory[i]);
    all.until.push_back(room(used));
  }
  // Before its first block the next run cannot give a slot back.
  used = 0;
  for (i = 0; i < blocks.front(); ++i) used = std::max(used, memory[i]);
  i = memory.size();
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    while (i > *block + 1) used = std::max(used, memory[--i]);
    all.behind.push_back(room(used));
  }
  std::ranges::reverse(all.behind);
  return all;
}

States::States(Writer& writer, const std::vector<GroupUse>& uses, SlotRoom room)
    : writer_(writer), uses_(uses), room_(std::move(room)), committed_(uses.size(), -1) {
  if (!writer.training()) return;
  streamed_ = streamed_parts();
  add_slots();
  add_transient_slots();
}

std::vector<States::Part> States::streamed_parts() const {
  std::vector<Part> parts;
  for (int g = 0; g < writer_.num_groups(); ++g) {
    const bool streamed =
        writer_.layout.groups[to_index(g)].update_method == UpdateMethod::streamed;
    for (int part = 0; streamed && trained(g) && part < writer_.layout.parts(g); ++part)
      parts.push_back({g, part});
  }
  return parts;
}

bool States::trained(int group) const {
  return uses_[to_index(group)].first_block >= 0 &&
         writer_.layout.groups[to_index(group)].trainable;
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
      if (!trained(g) || kind.update_method != method) continue;
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

/// As many as there is room for before the first updates, which is more than before.
void States::add_transient_slots() {
  if (room_.behind.empty()) return;
  const auto others = static_cast<int>(device_.slots.size());
  const auto parts = static_cast<int>(streamed_.size());
  transient_ = std::min(room_.behind.back(), parts - others);
  const Bytes bytes = writer_.program.buffers[to_index(device_.slots.front())].bytes();
  for (int slot = 0; slot < transient_; ++slot) {
    const int id = writer_.add_buffer(BufferRole::state_slot, -1, bytes, 1);
    writer_.program.buffers[to_index(id)].transient = true;
    device_.slots.push_back(id);
  }
}

void States::after_block(int index) {
  blocks_.push_back(index);
  if (transient_ == 0) return;
  const auto others = static_cast<std::size_t>(device_.slots.size()) - to_index(transient_);
  const int room = std::min(room_.behind[blocks_.size() - 1], transient_);
  if (room <= 0) return;
  // In the lane's order the others are filled first; they wait for nothing of this run.
  while (next_fetched_ < others) fetch_next(-1);
  while (next_fetched_ < others + to_index(room)) fetch_next(index);
}

/// Those that are empty first go first.
void States::return_transient_slots() {
  std::vector<int> emptied;
  for (auto slot = device_.slots.end() - transient_; slot != device_.slots.end(); ++slot)
    emptied.push_back(device_.freed_by.at(*slot));
  std::ranges::sort(emptied);
  auto next = emptied.begin();
  for (std::size_t b = 0; next != emptied.end(); ++b) {
    while (emptied.end() - next > room_.until[b])
      writer_.action(blocks_[b]).after_previous.push_back(*next++);
  }
}

std::pair<int, std::optional<int>> States::take(Ring& ring) const {
  const int slot = ring.slots[ring.next];
  ring.next = (ring.next + 1) % ring.slots.size();
  const auto freed = ring.freed_by.find(slot);
  return {slot, freed == ring.freed_by.end() ? std::nullopt : std::optional(freed->second)};
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
  update.writes.insert(update.writes.end(), resting.states.begin(), resting.states.end());
  if (resting.average >= 0) update.writes.push_back(resting.average);
  committed_[to_index(group)] = writer_.add(ActionKind::update, std::move(update));
}

void States::fetch_next(int behind) {
  const auto [group, part] = streamed_[next_fetched_++];
  const Resting& resting = writer_.resting[to_index(group)];
  const GroupLayout& kind = writer_.layout.groups[to_index(group)];
  std::vector<int> reads, after;
  if (kind.state_place != Place::device) reads = resting.states;
  if (kind.parameter_place != Place::device && writer_.layout.widths.parameters_are_states())
    reads.push_back(resting.parameters);
  const auto [slot, freed] = take(device_);
  if (freed) after.push_back(*freed);
  if (behind >= 0) after.push_back(behind);
  if (reads.empty()) {
    under_way_.push_back({slot, freed});  // the update fills it, with new parameters
    return;
  }
  const int fetch = add(ActionKind::fetch_states, Lane::fetch, group, part,
                        {.reads = std::move(reads), .writes = {slot}, .after = std::move(after)});
  device_.filled_by.try_emplace(slot, fetch);
  under_way_.push_back({slot, fetch});
}

void States::stream(int group, int part, int norm) {
  const Resting& resting = writer_.resting[to_index(group)];
  const GroupLayout& kind = writer_.layout.groups[to_index(group)];
  const bool states_travel = kind.state_place != Place::device;
  const bool parameters_travel = kind.parameter_place != Place::device;
  if (under_way_.empty()) fetch_next(-1);
  const auto [slot, filled_after] = under_way_.front();
  under_way_.pop_front();
  const int parked = writer_.parked_state(group);
  std::vector<int> evicted;
  if (states_travel) {
    evicted = resting.states;
    std::erase(evicted, parked);
  }
  if (parameters_travel) evicted.push_back(resting.parameters);
  Action update{.writes = {slot}, .after = {norm}};
  (parked >= 0 ? update.writes : update.reads).push_back(resting.gradient);
  wait_for_sum(group, update);
  if (filled_after) update.after.push_back(*filled_after);
  if (!parameters_travel) update.writes.push_back(resting.parameters);
  if (!states_travel)
    update.writes.insert(update.writes.end(), resting.states.begin(), resting.states.end());
  const int updated = add(ActionKind::update, Lane::update, group, part, std::move(update));
  device_.filled_by.try_emplace(slot, updated);
  const int evict = add(ActionKind::evict_states, Lane::evict, group, part,
                        {.reads = {slot}, .writes = evicted, .frees = {slot}, .after = {updated}});
  device_.freed_by[slot] = evict;
  committed_[to_index(group)] = parameters_travel ? evict : updated;
  if (parked >= 0)
    parked_.push_back({.part = {group, part}, .fetch = *filled_after, .update = updated});
}

/// Views of the group are the same, too: ranks that hold a whole gradient update a shard.
int Writer::parked_state(int group) const {
  const GroupLayout& kind = layout.groups[to_index(group)];
  const std::vector<int>& states = resting[to_index(group)].states;
  if (!options.park_state || kind.update_method != UpdateMethod::streamed ||
      kind.state_place == Place::device || kind.gradients != kind.states || states.size() < 2)
    return -1;
  const auto as_wide = [&](int id) {
    const Buffer& state = program.buffers[to_index(id)];
    // Halves of fp32 weights are as wide as bf16 gradients, but of another type.
    return state.width == layout.widths.gradient &&
           (state.role == BufferRole::moments || state.width == kFloatBytes);
  };
  const auto last = std::find_if(states.rbegin(), states.rend(), as_wide);
  return last == states.rend() ? -1 : *last;
}

void States::evict_parked() {
  for (Parked& own : parked_) {
    const int gradient = writer_.resting[to_index(own.part.group)].gradient;
    const auto changes = [&](const Action& action) {
      return std::ranges::find(action.writes, gradient) != action.writes.end();
    };
    own.used = static_cast<int>(std::ranges::find_if(writer_.program.actions, changes) -
                                writer_.program.actions.begin());
  }
  std::ranges::stable_sort(parked_, {}, &Parked::used);
  for (Parked& own : parked_) {
    const Resting& resting = writer_.resting[to_index(own.part.group)];
    own.evict = add(ActionKind::evict_states, Lane::evict, own.part.group, own.part.part,
                    {.reads = {resting.gradient},
                     .writes = {writer_.parked_state(own.part.group)},
                     .after = {own.update}});
  }
}

void States::close_parked() {
  for (const Parked& own : parked_)
    for (const int next : {own.used, own.fetch})
      writer_.action(next).after_previous.push_back(own.evict);
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
  Action update{.writes = resting.states, .after = {evicted}};
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
  evict_parked();
}

void States::close() {
  for (const Ring* ring : {&device_, &host_}) {
    for (const auto& [slot, action] : ring->filled_by)
      writer_.action(action).after_previous.push_back(ring->freed_by.at(slot));
  }
  return_transient_slots();
  close_parked();
}

}  // namespace dstrain::builder
