#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/program.h"

namespace dstrain {
namespace {

/// Squared norm, loss, top-1, top-5, samples, votes to stop: six fp32 numbers.
constexpr Bytes kNormBytes = 24;

/// One stay of the compute lane in a block; its parameters must be whole for that long.
struct Visit {
  int block = 0;
  int micro_batch = 0;
  bool backward = false;
};

/// The first block that trains anything; the backward pass ends there.
int first_trained_block(const ModelCost& cost) {
  const auto trains = [&](const BlockCost& block) {
    return std::ranges::any_of(block.groups,
                               [&](int g) { return cost.groups[to_index(g)].trainable; });
  };
  const auto first = std::ranges::find_if(cost.blocks, trains);
  DSTRAIN_CHECK(first != cost.blocks.end(), "all weights are frozen");
  return static_cast<int>(first - cost.blocks.begin());
}

std::vector<Visit> training_visits(const ModelCost& cost, int micro_batches) {
  const int blocks = static_cast<int>(cost.blocks.size());
  const int first = first_trained_block(cost);
  std::vector<Visit> visits;
  for (int m = 0; m < micro_batches; ++m) {
    for (int b = 0; b < blocks; ++b) visits.push_back({b, m, false});
    for (int b = blocks - 1; b >= first; --b) visits.push_back({b, m, true});
  }
  return visits;
}

std::vector<Visit> evaluation_visits(int blocks) {
  std::vector<Visit> visits;
  for (int b = 0; b < blocks; ++b) visits.push_back({b, 0, false});
  return visits;
}

/// Walks over the visits and writes the actions down, in an order that is correct on its own. What
/// runs on another lane is written as early as its buffers allow, and is waited for as late as its
/// result is needed.
class Builder {
 public:
  Builder(const Layout& layout, const ModelCost& cost, const ProgramOptions& options,
          std::vector<Visit> visits);

  void run_visits();
  void finish_step();
  [[nodiscard]] Program take() { return std::move(program_); }

 private:
  /// What never changes about a group.
  struct Group {
    int first_block = -1;  ///< of those that read it; its backward is the group's last
    bool shared = false;   ///< read by several blocks: it has slots of its own and stays in them
    int gather_slot = -1;  ///< its own, where it is shared
    int gradient_slot = -1;
    int last_visit = -1;  ///< of the whole program
  };
  /// Where a group's whole parameters are, as far as the list is written.
  struct Parameters {
    bool held = false;
    int slot = -1;
    int last_visit = -1;         ///< known so far
    std::optional<int> awaited;  ///< gather that no compute action has waited for yet
  };
  struct FreeSlot {
    int slot = 0;
    std::optional<int> released_by;
  };

  int add(ActionKind kind, Action action);
  void load(int micro_batch);
  void gather_ahead(int visit);
  bool gather_for(int visit);
  bool gather_group(int group, int visit);
  void release_after(int visit);
  void forward(const Visit& visit);
  void backward(const Visit& visit);
  void clear(int group, int micro_batch);
  void reduce(int group, int micro_batch, int after);
  void make_slots();
  [[nodiscard]] const std::vector<int>& groups_of(const Visit& visit) const {
    return cost_.blocks[to_index(visit.block)].groups;
  }
  [[nodiscard]] bool recomputed(int block) const {
    const bool head = to_index(block) + 1 == cost_.blocks.size();
    return !head && to_index(block) < options_.recompute.size() &&
           options_.recompute[to_index(block)];
  }
  /// Adds the waits that the first compute action after a gather has to carry.
  void await_parameters(int block, Action& action);

  const Layout& layout_;
  const ModelCost& cost_;
  const ProgramOptions& options_;
  const std::vector<Visit> visits_;
  Program program_;
  int lookahead_ = 0;

  std::vector<Group> groups_;
  std::vector<Parameters> parameters_;
  std::vector<int>
      cleared_;  ///< per group: micro-batch whose gradient its buffer collects, -1: none
  std::vector<int> gradient_slot_;               ///< per group: where that is, -1: at rest
  std::deque<FreeSlot> free_slots_;              ///< longest free first
  std::vector<std::optional<int>> slot_reader_;  ///< last reduce of each gradient slot
  int pooled_gradient_slots_ = 0;
  int next_gradient_slot_ = 0;
  std::vector<int> loads_;                        ///< per micro-batch
  std::vector<std::optional<int>> batch_reader_;  ///< last action that read each batch slot
  std::optional<int> last_reduce_;
};

Builder::Builder(const Layout& layout, const ModelCost& cost, const ProgramOptions& options,
                 std::vector<Visit> visits)
    : layout_(layout),
      cost_(cost),
      options_(options),
      visits_(std::move(visits)),
      lookahead_(options.prefetch),
      parameters_(cost.groups.size()),
      batch_reader_(kBatchSlots) {
  program_.micro_batches = options.micro_batches;
  groups_.resize(cost.groups.size());
  cleared_.assign(cost.groups.size(), -1);
  gradient_slot_.assign(cost.groups.size(), -1);
  for (int b = 0; b < static_cast<int>(cost.blocks.size()); ++b) {
    for (const int g : cost.blocks[to_index(b)].groups) {
      groups_[to_index(g)].shared = groups_[to_index(g)].first_block >= 0;
      if (!groups_[to_index(g)].shared) groups_[to_index(g)].first_block = b;
    }
  }
  for (int v = 0; v < static_cast<int>(visits_.size()); ++v) {
    for (const int g : groups_of(visits_[to_index(v)])) groups_[to_index(g)].last_visit = v;
  }
  make_slots();
}

void Builder::make_slots() {
  int pooled = 0, pooled_gradients = 0;
  std::int64_t largest = 0, largest_gradient = 0;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (groups_[to_index(g)].shared) continue;
    const std::int64_t elements = layout_.flat[to_index(g)].padded();
    if (layout_.gathered_into_slot(g)) {
      ++pooled;
      largest = std::max(largest, elements);
    }
    if (layout_.reduced_from_slot(g)) {
      ++pooled_gradients;
      largest_gradient = std::max(largest_gradient, elements);
    }
  }
  // Groups in use, `prefetch` blocks ahead, one whose last reader may still run; a block reads at
  // most `most` groups.
  int most = 1;
  for (const BlockCost& block : cost_.blocks) {
    int own = 0;
    for (const int g : block.groups) own += int{!groups_[to_index(g)].shared};
    most = std::max(most, own);
  }
  const int slots = std::min((options_.prefetch + 2) * most, pooled);
  pooled_gradient_slots_ = std::min(2 * most, pooled_gradients);
  if (pooled > 0) lookahead_ = std::min(options_.prefetch, slots - 1);
  // Each group has a slot of its own: gathered once, it stays.
  if (slots == pooled && pooled > 0) lookahead_ = static_cast<int>(visits_.size());
  for (int slot = 0; slot < slots; ++slot) {
    free_slots_.push_back({slot, {}});
    program_.gather_slots.push_back(largest);
  }
  program_.gradient_slots.assign(to_index(pooled_gradient_slots_), largest_gradient);
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    Group& group = groups_[to_index(g)];
    if (!group.shared) continue;
    const std::int64_t elements = layout_.flat[to_index(g)].padded();
    if (layout_.gathered_into_slot(g)) {
      group.gather_slot = static_cast<int>(program_.gather_slots.size());
      program_.gather_slots.push_back(elements);
    }
    if (layout_.reduced_from_slot(g)) {
      group.gradient_slot = static_cast<int>(program_.gradient_slots.size());
      program_.gradient_slots.push_back(elements);
    }
  }
  slot_reader_.resize(program_.gradient_slots.size());
}

int Builder::add(ActionKind kind, Action action) {
  action.kind = kind;
  action.lane = lane_of(kind);
  program_.actions.push_back(std::move(action));
  return static_cast<int>(program_.actions.size()) - 1;
}

void Builder::load(int micro_batch) {
  Action action{
      .micro_batch = micro_batch, .slot = micro_batch % kBatchSlots, .bytes = cost_.batch_bytes};
  if (const auto reader = batch_reader_[to_index(action.slot)]) action.after.push_back(*reader);
  loads_.push_back(add(ActionKind::load, std::move(action)));
}

/// Makes sure that the parameters of a visit are gathered or on their way; false when no slot is
/// free yet.
bool Builder::gather_for(int visit) {
  for (const int group : groups_of(visits_[to_index(visit)])) {
    if (!gather_group(group, visit)) return false;
  }
  return true;
}

bool Builder::gather_group(int group, int visit) {
  Parameters& p = parameters_[to_index(group)];
  const Group& facts = groups_[to_index(group)];
  if (!layout_.gathered(group)) return true;
  if (p.held) {
    p.last_visit = std::max(p.last_visit, visit);
    return true;
  }
  Action action{.group = group, .bytes = layout_.gather_bytes(group)};
  if (layout_.gathered_into_slot(group)) {
    if (facts.shared) {
      action.slot = facts.gather_slot;
    } else if (free_slots_.empty()) {
      return false;
    } else {
      const FreeSlot slot = free_slots_.front();
      free_slots_.pop_front();
      action.slot = slot.slot;
      if (slot.released_by) action.after.push_back(*slot.released_by);
    }
  }
  p = {.held = true,
       .slot = action.slot,
       .last_visit = facts.shared ? facts.last_visit : visit,
       .awaited = {}};
  p.awaited = add(ActionKind::gather, std::move(action));
  return true;
}

/// For this visit and for those after it, until `lookahead_` other blocks have come by.
void Builder::gather_ahead(int visit) {
  int blocks = 0;
  for (std::size_t v = to_index(visit); v < visits_.size(); ++v) {
    if (v > to_index(visit) && visits_[v].block != visits_[v - 1].block) ++blocks;
    if (blocks > lookahead_ || !gather_for(static_cast<int>(v))) return;
  }
}

void Builder::release_after(int visit) {
  for (const int group : groups_of(visits_[to_index(visit)])) {
    if (!layout_.gathered_into_slot(group)) continue;
    Parameters& p = parameters_[to_index(group)];
    if (p.last_visit > visit) continue;
    const int released_by = add(ActionKind::release, {.group = group, .slot = p.slot});
    if (!groups_[to_index(group)].shared) free_slots_.push_back({p.slot, released_by});
    p = {};
  }
}

void Builder::await_parameters(int block, Action& action) {
  for (const int group : cost_.blocks[to_index(block)].groups) {
    Parameters& p = parameters_[to_index(group)];
    if (p.awaited) action.after.push_back(*p.awaited);
    p.awaited.reset();
  }
}

void Builder::forward(const Visit& visit) {
  Action action{.block = visit.block,
                .micro_batch = visit.micro_batch,
                .flops = cost_.blocks[to_index(visit.block)].forward_flops};
  if (visit.block == 0) action.after.push_back(loads_[to_index(visit.micro_batch)]);
  await_parameters(visit.block, action);
  add(ActionKind::forward, std::move(action));
}

/// Gives the group's gradient an empty buffer unless it has one that it still collects in.
void Builder::clear(int group, int micro_batch) {
  const bool from_slot = layout_.reduced_from_slot(group);
  int& cleared = cleared_[to_index(group)];
  if (cleared == micro_batch || (cleared >= 0 && !from_slot)) return;
  cleared = micro_batch;
  Action action{.group = group, .micro_batch = micro_batch};
  if (from_slot) {
    action.slot = groups_[to_index(group)].gradient_slot;
    if (action.slot < 0) {
      action.slot = next_gradient_slot_;
      next_gradient_slot_ = (next_gradient_slot_ + 1) % pooled_gradient_slots_;
    }
    if (const auto reader = slot_reader_[to_index(action.slot)]) action.after.push_back(*reader);
  }
  gradient_slot_[to_index(group)] = action.slot;
  add(ActionKind::clear, std::move(action));
}

void Builder::backward(const Visit& visit) {
  const Flops forward_flops = cost_.blocks[to_index(visit.block)].forward_flops;
  if (recomputed(visit.block)) {
    Action again{.block = visit.block, .micro_batch = visit.micro_batch, .flops = forward_flops};
    await_parameters(visit.block, again);
    add(ActionKind::recompute, std::move(again));
  }
  std::vector<int> trained;
  for (const int group : groups_of(visit)) {
    if (layout_.groups[to_index(group)].trainable) trained.push_back(group);
  }
  for (const int group : trained) clear(group, visit.micro_batch);
  // A block that trains little of itself is spared the products for the weights' gradients.
  std::int64_t all = 0, own = 0;
  for (const int group : groups_of(visit)) {
    all += layout_.flat[to_index(group)].padded();
    if (layout_.groups[to_index(group)].trainable) own += layout_.flat[to_index(group)].padded();
  }
  Action action{.block = visit.block,
                .micro_batch = visit.micro_batch,
                .flops = (2 * own < all ? 1 : 2) * forward_flops};
  await_parameters(visit.block, action);
  const int index = add(ActionKind::backward, std::move(action));
  // The batch is read until here: labels by the head, images by a recomputed stem.
  batch_reader_[to_index(visit.micro_batch % kBatchSlots)] = index;
  if (layout_.data_ranks() == 1) return;
  const bool last = visit.micro_batch + 1 == options_.micro_batches;
  for (const int group : trained) {
    if (groups_[to_index(group)].first_block != visit.block) continue;
    if (layout_.reduced_from_slot(group) || last) reduce(group, visit.micro_batch, index);
  }
}

void Builder::reduce(int group, int micro_batch, int after) {
  const int slot = gradient_slot_[to_index(group)];
  const int index = add(ActionKind::reduce, {.group = group,
                                             .micro_batch = micro_batch,
                                             .slot = slot,
                                             .bytes = layout_.reduce_bytes(group),
                                             .after = {after}});
  if (slot >= 0) slot_reader_[to_index(slot)] = index;
  last_reduce_ = index;
}

void Builder::run_visits() {
  const int count = static_cast<int>(visits_.size());
  for (int v = 0; v < count; ++v) {
    const Visit& visit = visits_[to_index(v)];
    // Batches come one micro-batch ahead.
    while (static_cast<int>(loads_.size()) <=
           std::min(visit.micro_batch + 1, options_.micro_batches - 1)) {
      load(static_cast<int>(loads_.size()));
    }
    gather_ahead(v);
    visit.backward ? backward(visit) : forward(visit);
    release_after(v);
  }
}

void Builder::finish_step() {
  Action norm{.bytes = layout_.data_ranks() > 1 ? kNormBytes : 0};
  if (last_reduce_) norm.after.push_back(*last_reduce_);
  add(ActionKind::norm, std::move(norm));
  for (int g = 0; g < static_cast<int>(cost_.groups.size()); ++g) {
    if (layout_.groups[to_index(g)].trainable) add(ActionKind::update, {.group = g});
  }
}

void check_arguments(const Layout& layout, const ModelCost& cost, const ProgramOptions& options) {
  DSTRAIN_CHECK(
      layout.groups.size() == cost.groups.size() && layout.flat.size() == cost.groups.size(),
      "the layout belongs to another model");
  DSTRAIN_CHECK(!cost.blocks.empty(), "a model without blocks");
  std::vector<bool> read(cost.groups.size(), false);
  for (const BlockCost& block : cost.blocks) {
    DSTRAIN_CHECK(!block.groups.empty(), block.name + " reads no group");
    for (const int g : block.groups) read.at(to_index(g)) = true;
  }
  DSTRAIN_CHECK(std::ranges::find(read, false) == read.end(), "a group that no block reads");
  DSTRAIN_CHECK(
      options.micro_batches >= 1 && options.prefetch >= 0,
      fmt::format("{} micro-batches, prefetch {}", options.micro_batches, options.prefetch));
}

}  // namespace

Program training_program(const Layout& layout, const ModelCost& cost,
                         const ProgramOptions& options) {
  check_arguments(layout, cost, options);
  Builder builder(layout, cost, options, training_visits(cost, options.micro_batches));
  builder.run_visits();
  builder.finish_step();
  return builder.take();
}

Program evaluation_program(const Layout& layout, const ModelCost& cost,
                           const ProgramOptions& options) {
  const ProgramOptions one = {.micro_batches = 1, .prefetch = options.prefetch};
  check_arguments(layout, cost, one);
  Builder builder(layout, cost, one, evaluation_visits(static_cast<int>(cost.blocks.size())));
  builder.run_visits();
  Program program = builder.take();
  program.gradient_slots.clear();
  return program;
}

}  // namespace dstrain
