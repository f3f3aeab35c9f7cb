#include "engine/program/builder/parameters.h"

#include <algorithm>
#include <array>
#include <map>

#include "engine/program/builder/slot_pools.h"
#include "engine/program/lane_order.h"

namespace dstrain::builder {

Parameters::Parameters(Writer& writer, const std::vector<GroupUse>& uses)
    : writer_(writer),
      uses_(uses),
      lookahead_(writer.options.prefetch),
      own_slot_(uses.size(), -1),
      held_(uses.size()),
      filled_(uses.size()) {
  add_slots();
}

/// By visit that reads parameters: the groups which take a slot of a pool and are in use or on
/// their way while it runs. Those are the groups of the block before, whose last reader may still
/// run, and of the blocks up to `prefetch` after it.
std::vector<std::vector<int>> Parameters::windows(const std::vector<std::int64_t>& pooled) const {
  // Neighbours that read the same groups count as one.
  std::vector<int> blocks;
  for (const Visit& visit : writer_.visits) {
    if (visit.pass == Pass::weight) continue;  // reads none
    if (blocks.empty() || writer_.groups_of(visit.block) != writer_.groups_of(blocks.back()))
      blocks.push_back(visit.block);
  }
  std::vector<std::vector<int>> list;
  const auto count = static_cast<int>(blocks.size());
  for (int at = 0; at < count; ++at) {
    std::vector<int>& window = list.emplace_back();
    const int end = std::min(count, at + writer_.options.prefetch + 1);
    for (int b = std::max(at - 1, 0); b < end; ++b) {
      for (const int g : writer_.groups_of(blocks[to_index(b)]))
        if (pooled[to_index(g)] > 0 && std::ranges::find(window, g) == window.end())
          window.push_back(g);
    }
  }
  return list;
}

void Parameters::add_slots() {
  const Layout& layout = writer_.layout;
  std::vector<std::int64_t> pooled(uses_.size());
  for (int g = 0; g < writer_.num_groups(); ++g) {
    const GroupUse& use = uses_[to_index(g)];
    if (use.first_block >= 0 && !use.shared && layout.gathered_into_slot(g))
      pooled[to_index(g)] = layout.flat[to_index(g)].padded();
  }
  const SlotPools pools = slot_pools(pooled, windows(pooled));
  pool_of_ = pools.pool_of;
  int slots = 0;
  for (const SlotPool& pool : pools.pools) slots += pool.slots;
  // Each group has a slot of its own: gathered once, it stays.
  if (slots > 0 && slots == std::ranges::count_if(pool_of_, [](int pool) { return pool >= 0; }))
    lookahead_ = static_cast<int>(writer_.visits.size());
  const auto add = [&](std::int64_t elements) {
    return writer_.add_buffer(BufferRole::gathered, -1, elements, layout.widths.compute);
  };
  for (const SlotPool& pool : pools.pools) {
    std::deque<FreeSlot>& free = free_slots_.emplace_back();
    for (int slot = 0; slot < pool.slots; ++slot) free.push_back({add(pool.elements), {}});
  }
  for (int g = 0; g < writer_.num_groups(); ++g) {
    if (uses_[to_index(g)].shared && layout.gathered_into_slot(g))
      own_slot_[to_index(g)] = add(layout.flat[to_index(g)].padded());
  }
  Bytes codes = 0;
  for (int g = 0; g < writer_.num_groups(); ++g) {
    if (uses_[to_index(g)].first_block >= 0) codes = std::max(codes, layout.gather_scratch(g));
  }
  if (codes > 0) codes_ = writer_.add_buffer(BufferRole::coded_parameters, -1, codes, 1);
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
  const bool into_slot = layout.gathered_into_slot(group);
  if (!layout.gathered(group) && !into_slot) return true;
  // The parameters at rest are made whole before an evaluation begins.
  if (!writer_.training() && !into_slot) return true;
  if (held.held) {
    held.last_visit = std::max(held.last_visit, visit);
    return true;
  }
  const int resting = writer_.resting[to_index(group)].parameters;
  int buffer = resting;
  std::vector<int> after;
  if (into_slot) {
    if (use.shared) {
      buffer = own_slot_[to_index(group)];
    } else if (free_slots_of(group).empty()) {
      return false;
    } else {
      const FreeSlot slot = free_slots_of(group).front();
      free_slots_of(group).pop_front();
      buffer = slot.slot;
      if (slot.released_by) after.push_back(*slot.released_by);
    }
  }
  held = {.held = true,
          .buffer = buffer,
          .last_visit = use.shared ? use.last_visit : visit,
          .awaited = {},
          .readers = {}};
  held.awaited = fill(group, buffer, std::move(after));
  return true;
}

int Parameters::fill(int group, int buffer, std::vector<int> after) {
  const Layout& layout = writer_.layout;
  const int resting = writer_.resting[to_index(group)].parameters;
  Action gather{.group = group, .writes = {buffer}};
  const bool from_second = layout.second_degree > 1 && filled_[to_index(group)];
  filled_[to_index(group)] = true;
  if (layout.groups[to_index(group)].parameter_place != Place::device && !from_second) {
    // The own shard goes to its place in the slot, and the other ones are gathered around it.
    const int fetch = writer_.add(
        ActionKind::fetch_parameters,
        {.group = group, .reads = {resting}, .writes = {buffer}, .after = std::move(after)});
    if (!layout.gathered(group)) return fetch;
  } else {
    if (buffer != resting) gather.reads = {resting};
    gather.after = std::move(after);
  }
  if (layout.gathers_codes(group)) gather.writes.push_back(codes_);
  return writer_.add(ActionKind::gather, std::move(gather));
}

void Parameters::before(int visit) {
  const std::vector<Visit>& visits = writer_.visits;
  int blocks = 0;
  for (std::size_t v = to_index(visit); v < visits.size(); ++v) {
    if (visits[v].pass == Pass::weight) continue;  // reads none
    // Neighbours that read the same groups count as one.
    if (v > to_index(visit) && visits[v].block != visits[v - 1].block &&
        writer_.groups_of(visits[v].block) != writer_.groups_of(visits[v - 1].block))
      ++blocks;
    if (blocks > lookahead_ || !gather_for(static_cast<int>(v))) return;
  }
}

void Parameters::wait(int block, Action& action) {
  for (const int group : writer_.groups_of(block)) {
    const Held& held = held_[to_index(group)];
    if (held.awaited && !held.readers.contains(action.lane)) action.after.push_back(*held.awaited);
  }
}

void Parameters::read_by(int block, int index) {
  for (const int group : writer_.groups_of(block))
    held_[to_index(group)].readers[writer_.action(index).lane] = index;
}

void Parameters::after(int visit) {
  const Lane lane = writer_.lane_of(writer_.visits[to_index(visit)].micro_batch);
  for (const int group : writer_.groups_of(writer_.visits[to_index(visit)].block)) {
    if (!writer_.layout.gathered_into_slot(group)) continue;
    Held& held = held_[to_index(group)];
    if (held.last_visit > visit) continue;
    Action release{.lane = lane, .group = group, .frees = {held.buffer}};
    for (const auto& [other, reader] : held.readers)
      if (other != lane) release.after.push_back(reader);
    const int released_by = writer_.add(ActionKind::release, std::move(release));
    if (!uses_[to_index(group)].shared) free_slots_of(group).push_back({held.buffer, released_by});
    held = {};
  }
}

int Parameters::buffer(int group) const {
  return writer_.layout.gathered_into_slot(group) ? held_[to_index(group)].buffer
                                                  : writer_.resting[to_index(group)].parameters;
}

/// A second shard for groups gathered several times: the first gather fills it, the others read it
/// instead of the shard, and the last frees it.
void Parameters::add_second_shards() {
  if (writer_.layout.second_degree == 1) return;
  std::vector<std::vector<int>> gathers(to_index(writer_.num_groups()));
  for (int i = 0; i < static_cast<int>(writer_.program.actions.size()); ++i) {
    const Action& action = writer_.action(i);
    if (action.kind == ActionKind::gather) gathers[to_index(action.group)].push_back(i);
  }
  for (int g = 0; g < writer_.num_groups(); ++g) {
    const std::vector<int>& own = gathers[to_index(g)];
    if (own.size() < 2) continue;
    const int id =
        writer_.add_buffer(BufferRole::second_shard, g, writer_.layout.second_elements(g),
                           writer_.layout.widths.compute);
    writer_.action(own.front()).writes.push_back(id);
    writer_.write_work(writer_.action(own.front()));
    for (std::size_t turn = 1; turn < own.size(); ++turn) {
      Action& action = writer_.action(own[turn]);
      action.reads = {id};
      action.writes.resize(1);  // without codes
      writer_.write_work(action);
    }
    writer_.action(own.back()).frees = {id};
  }
}

/// What fills a buffer reads what the update before it wrote, and overwrites what the release
/// before it let go.
void Parameters::close(const std::vector<int>& committed) {
  const Layout& layout = writer_.layout;
  add_second_shards();
  std::map<int, int> released;  // by buffer: the last
  for (int i = 0; i < static_cast<int>(writer_.program.actions.size()); ++i) {
    const Action& action = writer_.action(i);
    if (action.kind == ActionKind::release) released[action.frees.front()] = i;
  }
  std::vector<bool> read(committed.size());  // by group that rests whole on the device
  for (Action& action : writer_.program.actions) {
    if (action.kind == ActionKind::gather || action.kind == ActionKind::fetch_parameters) {
      const bool fetched = action.kind == ActionKind::gather && action.reads.empty() &&
                           layout.groups[to_index(action.group)].parameter_place != Place::device;
      if (fetched) continue;
      if (committed[to_index(action.group)] >= 0)
        action.after_previous.push_back(committed[to_index(action.group)]);
      if (const auto found = released.find(action.writes.front()); found != released.end())
        action.after_previous.push_back(found->second);
    } else if (action.kind == ActionKind::forward) {
      for (const int group : writer_.groups_of(action.block)) {
        const int update = committed[to_index(group)];
        if (update < 0 || read[to_index(group)] || layout.gathered(group) ||
            layout.gathered_into_slot(group))
          continue;
        read[to_index(group)] = true;
        if (writer_.action(update).lane != Lane::compute) action.after_previous.push_back(update);
      }
    }
  }
}

void remove_implied_waits(Program& program) {
  const auto count = static_cast<int>(program.actions.size());
  const LaneOrder order(program.actions, /*runs=*/2);
  std::array<int, kNumLanes> last;  // on each lane, of the run before first
  last.fill(-1);
  for (int i = 0; i < count; ++i)
    last[static_cast<std::size_t>(program.actions[to_index(i)].lane)] = i;
  for (int i = 0; i < count; ++i) {
    Action& action = program.actions[to_index(i)];
    std::vector<int> waits;
    for (const int other : action.after) waits.push_back(count + other);
    waits.insert(waits.end(), action.after_previous.begin(), action.after_previous.end());
    const int lane_before = std::exchange(last[static_cast<std::size_t>(action.lane)], count + i);
    std::vector<bool> implied(waits.size());
    for (std::size_t w = 0; w < waits.size(); ++w) {
      const auto follows = [&](int other) {
        return other >= 0 && (other == waits[w] || order.before(waits[w], other));
      };
      implied[w] = follows(lane_before);
      for (std::size_t k = 0; k < waits.size(); ++k) {
        if (k == w || (waits[k] == waits[w] && k > w)) continue;
        implied[w] = implied[w] || follows(waits[k]);
      }
    }
    std::vector<int> after, after_previous;
    for (std::size_t w = 0; w < waits.size(); ++w) {
      if (implied[w]) continue;
      waits[w] < count ? after_previous.push_back(waits[w]) : after.push_back(waits[w] - count);
    }
    action.after = std::move(after);
    action.after_previous = std::move(after_previous);
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
