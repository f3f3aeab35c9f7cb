#include "engine/program/builder/gradients.h"

#include <algorithm>

namespace dstrain::builder {

Gradients::Gradients(Writer& writer, const std::vector<GroupUse>& uses)
    : writer_(writer), uses_(uses), backwards_(uses.size()), gathered_sums_(uses.size(), -1) {
  const std::vector<int> none(uses.size(), -1);
  collecting_.fill({.own_slot = none, .cleared = none, .buffer = none});
  if (!writer.training()) return;
  add_slots();
  add_reduction_buffers();
}

void Gradients::add_slots() {
  const Layout& layout = writer_.layout;
  int pooled = 0;
  std::int64_t largest = 0;
  for (int g = 0; g < writer_.num_groups(); ++g) {
    if (uses_[to_index(g)].first_block < 0 || uses_[to_index(g)].shared) continue;
    if (!layout.reduced_from_slot(g)) continue;
    ++pooled;
    largest = std::max(largest, layout.whole_gradient_elements(g));
  }
  const auto add = [&](std::int64_t elements) {
    return writer_.add_buffer(BufferRole::whole_gradient, -1, elements, layout.widths.gradient);
  };
  // Each of two micro-batches under way has a slot of its own.
  const std::size_t at_once = writer_.options.two_at_once ? 2 : 1;
  const int slots =
      std::min(2 * max_own_groups(writer_, uses_), static_cast<int>(at_once) * pooled);
  for (int slot = 0; slot < slots; ++slot) pool_.push_back(add(largest));
  for (int g = 0; g < writer_.num_groups(); ++g) {
    if (!uses_[to_index(g)].shared || !layout.reduced_from_slot(g)) continue;
    for (std::size_t lane = 0; lane < at_once; ++lane)
      collecting_[lane].own_slot[to_index(g)] = add(layout.whole_gradient_elements(g));
  }
}

/// Buffers of the size that the largest group needs.
void Gradients::add_reduction_buffers() {
  const Layout& layout = writer_.layout;
  const bool narrow = layout.widths.reduce_wire < layout.widths.gradient;
  std::int64_t shard = 0, whole = 0;
  for (int g = 0; g < writer_.num_groups(); ++g) {
    if (uses_[to_index(g)].first_block < 0) continue;
    const FlatGroup& flat = layout.flat[to_index(g)];
    if (layout.reduced(g)) whole = std::max(whole, flat.padded());
    if (layout.reduced_from_slot(g)) shard = std::max(shard, flat.shard_size());
  }
  Bytes codes = 0;
  for (int g = 0; g < writer_.num_groups(); ++g) {
    if (uses_[to_index(g)].first_block >= 0) codes = std::max(codes, layout.reduce_scratch(g));
  }
  if (codes > 0) codes_ = writer_.add_buffer(BufferRole::coded_gradient, -1, codes, 1);
  if (narrow && whole > 0) {
    wire_ = writer_.add_buffer(BufferRole::wire, -1, whole, layout.widths.reduce_wire);
  } else if (shard > 0 && writer_.options.micro_batches > 1) {
    shard_sum_ = writer_.add_buffer(BufferRole::shard_sum, -1, shard, layout.widths.gradient);
  }
}

void Gradients::clear(int group, int micro_batch) {
  const bool from_slot = writer_.layout.reduced_from_slot(group);
  Collecting& own = collecting_[place(group, micro_batch)];
  int& cleared = own.cleared[to_index(group)];
  if (cleared == micro_batch || (cleared >= 0 && !from_slot)) return;
  cleared = micro_batch;
  Action action{.lane = writer_.lane_of(micro_batch), .group = group, .micro_batch = micro_batch};
  int buffer = writer_.resting[to_index(group)].gradient;
  if (from_slot) {
    buffer = own.own_slot[to_index(group)];
    if (buffer < 0) {
      buffer = pool_[next_];
      next_ = (next_ + 1) % pool_.size();
    }
    if (const auto reader = last_reduce_of_.find(buffer); reader != last_reduce_of_.end())
      action.after.push_back(reader->second);
  }
  own.buffer[to_index(group)] = buffer;
  action.writes = {buffer};
  writer_.add(ActionKind::clear, std::move(action));
}

void Gradients::after(const Visit& visit, int index) {
  const Layout& layout = writer_.layout;
  for (const int group : writer_.groups_of(visit.block)) {
    if (!layout.reduced(group)) continue;
    const GroupUse& use = uses_[to_index(group)];
    const bool last = ++backwards_[to_index(group)] == use.readers * writer_.options.micro_batches;
    const bool of_micro_batch = layout.reduced_from_slot(group) && use.first_block == visit.block;
    if (last && layout.groups[to_index(group)].stages.size() > 1) {
      over_stages_.push_back({group, visit.micro_batch, index});
    } else if (layout.reduced_from_slot(group) ? of_micro_batch : last) {
      reduce(group, visit.micro_batch, index);
    }
  }
}

void Gradients::reduce(int group, int micro_batch, int after) {
  const int whole = buffer(group, micro_batch);
  const bool from_slot = writer_.layout.reduced_from_slot(group);
  Action action{.group = group,
                .micro_batch = micro_batch,
                .writes = {writer_.resting[to_index(group)].gradient},
                .after = {after}};
  if (from_slot) {
    action.reads = {whole};
    action.frees = {whole};
    if (shard_sum_ >= 0 && micro_batch > 0) action.writes.push_back(shard_sum_);
  }
  if (wire_ >= 0) action.writes.push_back(wire_);
  if (codes_ >= 0 && writer_.layout.reduces_codes(group)) action.writes.push_back(codes_);
  const int index = writer_.add(ActionKind::reduce, std::move(action));
  if (from_slot) last_reduce_of_[whole] = index;
  last_reduce_ = index;
  if (!writer_.layout.splits_sum(group)) return;
  gathered_sums_[to_index(group)] = writer_.add(
      ActionKind::gather_sum,
      {.group = group, .writes = {writer_.resting[to_index(group)].gradient}, .after = {index}});
}

int Gradients::finish() {
  // After all others, in one order on all stages: they come to it at different times.
  std::ranges::sort(over_stages_, {}, &Late::group);
  for (const auto& [group, micro_batch, after] : over_stages_) reduce(group, micro_batch, after);
  Action norm;
  for (const Resting& resting : writer_.resting) {
    if (resting.gradient >= 0) norm.reads.push_back(resting.gradient);
  }
  if (last_reduce_) norm.after.push_back(*last_reduce_);
  for (int i = static_cast<int>(writer_.program.actions.size()) - 1; i >= 0; --i) {
    if (writer_.action(i).lane != Lane::compute_beside) continue;
    norm.after.push_back(i);
    break;
  }
  return writer_.add(ActionKind::norm, std::move(norm));
}

}  // namespace dstrain::builder
