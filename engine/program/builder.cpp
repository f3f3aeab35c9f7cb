#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/program.h"

namespace dstrain {
namespace {

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
  Builder(ProgramKind kind, const Layout& layout, const ModelCost& cost,
          const ProgramOptions& options, std::vector<Visit> visits);

  void run_visits();
  void finish_step();
  void gather_resident();
  [[nodiscard]] Program take() { return std::move(program_); }

 private:
  /// What never changes about a group.
  struct Group {
    int first_block = -1;  ///< of those that read it; its backward is the group's last
    bool shared = false;   ///< read by several blocks: it has slots of its own and stays in them
    int last_visit = -1;   ///< of the whole program
    // Buffers. -1: none, or for slots that the group takes one of those that groups share.
    int parameters = -1;
    int gradient = -1;
    int master = -1;
    int moments = -1;
    int gather_slot = -1;
    int gradient_slot = -1;
  };
  /// Where a group's whole parameters are, as far as the list is written.
  struct Parameters {
    bool held = false;
    int buffer = -1;
    int last_visit = -1;         ///< known so far
    std::optional<int> awaited;  ///< gather that no compute action has waited for yet
  };
  struct FreeSlot {
    int slot = -1;
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
  int add_buffer(BufferRole role, int owner, std::int64_t elements, int width);
  void add_resting_state();
  void add_slots();
  void add_reduction_buffers();
  void add_activations();
  /// What a visit of the compute lane reads: parameters, inputs and the block's input.
  [[nodiscard]] std::vector<int> inputs_of(const Visit& visit) const;
  [[nodiscard]] const std::vector<int>& groups_of(const Visit& visit) const {
    return cost_.blocks[to_index(visit.block)].groups;
  }
  [[nodiscard]] bool has_backward(int block) const {
    return program_.kind == ProgramKind::training && block >= first_trained_;
  }
  [[nodiscard]] bool recomputed(int block) const {
    const bool head = to_index(block) + 1 == cost_.blocks.size();
    return !head && to_index(block) < options_.recompute.size() &&
           options_.recompute[to_index(block)] && has_backward(block);
  }
  /// Adds the waits that the first compute action after a gather has to carry.
  void await_parameters(int block, Action& action);

  const Layout& layout_;
  const ModelCost& cost_;
  const ProgramOptions& options_;
  const std::vector<Visit> visits_;
  Program program_;
  int lookahead_ = 0;
  int first_trained_ = 0;  ///< block

  std::vector<int> batches_;        ///< buffers, by micro-batch % kBatchSlots
  std::vector<int> output_;         ///< buffers, by block
  std::vector<int> saved_;          ///< buffers, by block
  std::vector<int> gradient_pool_;  ///< buffers that groups share for whole gradients
  int shard_sum_ = -1;              ///< buffers of the reduction, -1: it needs none
  int wire_ = -1;
  std::vector<Group> groups_;
  std::vector<Parameters> parameters_;
  /// Per group: micro-batch whose gradient its buffer collects, -1: none.
  std::vector<int> cleared_;
  std::vector<int> gradient_buffer_;    ///< per group: buffer of that gradient
  std::deque<FreeSlot> free_slots_;     ///< longest free first
  std::map<int, int> gradient_reader_;  ///< last reduce of each gradient slot
  std::size_t next_gradient_slot_ = 0;
  std::vector<int> loads_;                        ///< per micro-batch
  std::vector<std::optional<int>> batch_reader_;  ///< last action that read each batch slot
  std::optional<int> last_reduce_;
};

Builder::Builder(ProgramKind kind, const Layout& layout, const ModelCost& cost,
                 const ProgramOptions& options, std::vector<Visit> visits)
    : layout_(layout),
      cost_(cost),
      options_(options),
      visits_(std::move(visits)),
      lookahead_(options.prefetch),
      parameters_(cost.groups.size()),
      batch_reader_(kBatchSlots) {
  program_.kind = kind;
  program_.micro_batches = options.micro_batches;
  if (kind == ProgramKind::training) first_trained_ = first_trained_block(cost);
  groups_.resize(cost.groups.size());
  cleared_.assign(cost.groups.size(), -1);
  gradient_buffer_.assign(cost.groups.size(), -1);
  for (int b = 0; b < static_cast<int>(cost.blocks.size()); ++b) {
    for (const int g : cost.blocks[to_index(b)].groups) {
      groups_[to_index(g)].shared = groups_[to_index(g)].first_block >= 0;
      if (!groups_[to_index(g)].shared) groups_[to_index(g)].first_block = b;
    }
  }
  for (int v = 0; v < static_cast<int>(visits_.size()); ++v) {
    for (const int g : groups_of(visits_[to_index(v)])) groups_[to_index(g)].last_visit = v;
  }
  add_resting_state();
  if (kind == ProgramKind::gathering) return;
  for (int slot = 0; slot < kBatchSlots; ++slot)
    batches_.push_back(add_buffer(BufferRole::batch, -1, cost.batch_bytes, 1));
  add_slots();
  if (kind == ProgramKind::training) add_reduction_buffers();
  add_activations();
}

int Builder::add_buffer(BufferRole role, int owner, std::int64_t elements, int width) {
  program_.buffers.push_back({.role = role, .owner = owner, .elements = elements, .width = width});
  return static_cast<int>(program_.buffers.size()) - 1;
}

void Builder::add_resting_state() {
  const StateWidths& widths = layout_.widths;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    Group& group = groups_[to_index(g)];
    const GroupLayout& kind = layout_.groups[to_index(g)];
    const FlatGroup& flat = layout_.flat[to_index(g)];
    const auto add = [&](BufferRole role, Partition partition, int width) {
      const bool sharded = partition == Partition::sharded;
      return add_buffer(role, g, sharded ? flat.shard_size() : flat.padded(), width);
    };
    group.parameters = add(BufferRole::parameters, kind.parameters, widths.compute);
    if (!kind.trainable) continue;
    group.gradient = add(BufferRole::gradient, kind.gradients, widths.gradient);
    if (widths.master > 0) group.master = add(BufferRole::master, kind.states, widths.master);
    program_.buffers.push_back(moments_of(g, layout_));
    group.moments = static_cast<int>(program_.buffers.size()) - 1;
  }
}

void Builder::add_slots() {
  const bool training = program_.kind == ProgramKind::training;
  int pooled = 0, pooled_gradients = 0;
  std::int64_t largest = 0, largest_gradient = 0;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (groups_[to_index(g)].shared) continue;
    const std::int64_t elements = layout_.flat[to_index(g)].padded();
    if (layout_.gathered_into_slot(g)) {
      ++pooled;
      largest = std::max(largest, elements);
    }
    if (training && layout_.reduced_from_slot(g)) {
      ++pooled_gradients;
      largest_gradient = std::max(largest_gradient, elements);
    }
  }
  // Groups in use, `prefetch` blocks ahead, one whose last reader may still run; a block reads at
  // most `max_own` groups that no other block reads.
  int max_own = 1;
  for (const BlockCost& block : cost_.blocks) {
    int own = 0;
    for (const int g : block.groups) own += int{!groups_[to_index(g)].shared};
    max_own = std::max(max_own, own);
  }
  const int slots = std::min((options_.prefetch + 2) * max_own, pooled);
  if (pooled > 0) lookahead_ = std::min(options_.prefetch, slots - 1);
  // Each group has a slot of its own: gathered once, it stays.
  if (slots == pooled && pooled > 0) lookahead_ = static_cast<int>(visits_.size());
  const StateWidths& widths = layout_.widths;
  const auto gather_slot = [&](std::int64_t elements) {
    return add_buffer(BufferRole::gathered, -1, elements, widths.compute);
  };
  const auto gradient_slot = [&](std::int64_t elements) {
    return add_buffer(BufferRole::whole_gradient, -1, elements, widths.gradient);
  };
  for (int slot = 0; slot < slots; ++slot) free_slots_.push_back({gather_slot(largest), {}});
  for (int slot = 0; slot < std::min(2 * max_own, pooled_gradients); ++slot)
    gradient_pool_.push_back(gradient_slot(largest_gradient));
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    Group& group = groups_[to_index(g)];
    if (!group.shared) continue;
    const std::int64_t elements = layout_.flat[to_index(g)].padded();
    if (layout_.gathered_into_slot(g)) group.gather_slot = gather_slot(elements);
    if (training && layout_.reduced_from_slot(g)) group.gradient_slot = gradient_slot(elements);
  }
}

/// Of the size that the largest group needs.
void Builder::add_reduction_buffers() {
  if (layout_.data_ranks() == 1) return;
  const bool narrow = layout_.widths.reduce_wire < layout_.widths.gradient;
  std::int64_t shard = 0, whole = 0;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    const FlatGroup& flat = layout_.flat[to_index(g)];
    if (layout_.groups[to_index(g)].trainable) whole = std::max(whole, flat.padded());
    if (layout_.reduced_from_slot(g)) shard = std::max(shard, flat.shard_size());
  }
  if (narrow) {
    wire_ = add_buffer(BufferRole::wire, -1, whole, layout_.widths.reduce_wire);
  } else if (shard > 0 && options_.micro_batches > 1) {
    shard_sum_ = add_buffer(BufferRole::shard_sum, -1, shard, layout_.widths.gradient);
  }
}

void Builder::add_activations() {
  for (int b = 0; b < static_cast<int>(cost_.blocks.size()); ++b) {
    const BlockCost& block = cost_.blocks[to_index(b)];
    output_.push_back(add_buffer(BufferRole::output, b, block.boundary_bytes, 1));
    if (has_backward(b)) {
      saved_.push_back(add_buffer(BufferRole::saved, b, block.saved_bytes, 1));
    } else {
      saved_.push_back(-1);
    }
  }
}

int Builder::add(ActionKind kind, Action action) {
  action.kind = kind;
  action.comm = collectives_of(kind, action.group, layout_);
  program_.actions.push_back(std::move(action));
  return static_cast<int>(program_.actions.size()) - 1;
}

void Builder::load(int micro_batch) {
  const std::size_t slot = to_index(micro_batch % kBatchSlots);
  Action action{.micro_batch = micro_batch, .writes = {batches_[slot]}};
  if (const auto reader = batch_reader_[slot]) action.after.push_back(*reader);
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
  // The parameters at rest are made whole before an evaluation begins.
  if (program_.kind == ProgramKind::evaluation && !layout_.gathered_into_slot(group)) return true;
  if (p.held) {
    p.last_visit = std::max(p.last_visit, visit);
    return true;
  }
  Action action{.group = group};
  int buffer = facts.parameters;
  if (layout_.gathered_into_slot(group)) {
    if (facts.shared) {
      buffer = facts.gather_slot;
    } else if (free_slots_.empty()) {
      return false;
    } else {
      const FreeSlot slot = free_slots_.front();
      free_slots_.pop_front();
      buffer = slot.slot;
      if (slot.released_by) action.after.push_back(*slot.released_by);
    }
    action.reads = {facts.parameters};
  }
  action.writes = {buffer};
  p = {.held = true,
       .buffer = buffer,
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
    const int released_by = add(ActionKind::release, {.group = group, .frees = {p.buffer}});
    if (!groups_[to_index(group)].shared) free_slots_.push_back({p.buffer, released_by});
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

std::vector<int> Builder::inputs_of(const Visit& visit) const {
  std::vector<int> reads;
  for (const int group : groups_of(visit)) {
    reads.push_back(layout_.gathered_into_slot(group) ? parameters_[to_index(group)].buffer
                                                      : groups_[to_index(group)].parameters);
  }
  reads.push_back(batches_[to_index(visit.micro_batch % kBatchSlots)]);
  if (visit.block > 0) reads.push_back(output_[to_index(visit.block - 1)]);
  return reads;
}

void Builder::forward(const Visit& visit) {
  const std::size_t block = to_index(visit.block);
  const bool keeps = has_backward(visit.block) && !recomputed(visit.block);
  Action action{.block = visit.block,
                .micro_batch = visit.micro_batch,
                .reads = inputs_of(visit),
                .writes = {output_[block]},
                .workspace = workspace_of(ActionKind::forward, cost_.blocks[block], keeps),
                .flops = cost_.blocks[block].forward_flops};
  if (keeps) action.writes.push_back(saved_[block]);
  if (visit.block == 0) action.after.push_back(loads_[to_index(visit.micro_batch)]);
  await_parameters(visit.block, action);
  // Only a backward needs the block's input again.
  if (visit.block > 0 && !has_backward(visit.block)) action.frees.push_back(output_[block - 1]);
  if (program_.kind == ProgramKind::evaluation && block + 1 == cost_.blocks.size()) {
    action.frees.push_back(output_[block]);
    action.frees.push_back(batches_[to_index(visit.micro_batch % kBatchSlots)]);
  }
  add(ActionKind::forward, std::move(action));
}

/// Gives the group's gradient an empty buffer unless it has one that it still collects in.
void Builder::clear(int group, int micro_batch) {
  const bool from_slot = layout_.reduced_from_slot(group);
  int& cleared = cleared_[to_index(group)];
  if (cleared == micro_batch || (cleared >= 0 && !from_slot)) return;
  cleared = micro_batch;
  Action action{.group = group, .micro_batch = micro_batch};
  int buffer = groups_[to_index(group)].gradient;
  if (from_slot) {
    buffer = groups_[to_index(group)].gradient_slot;
    if (buffer < 0) {
      buffer = gradient_pool_[next_gradient_slot_];
      next_gradient_slot_ = (next_gradient_slot_ + 1) % gradient_pool_.size();
    }
    if (const auto reader = gradient_reader_.find(buffer); reader != gradient_reader_.end())
      action.after.push_back(reader->second);
  }
  gradient_buffer_[to_index(group)] = buffer;
  action.writes = {buffer};
  add(ActionKind::clear, std::move(action));
}

void Builder::backward(const Visit& visit) {
  const Flops forward_flops = cost_.blocks[to_index(visit.block)].forward_flops;
  const std::size_t block = to_index(visit.block);
  if (recomputed(visit.block)) {
    Action again{.block = visit.block,
                 .micro_batch = visit.micro_batch,
                 .reads = inputs_of(visit),
                 .writes = {output_[block], saved_[block]},
                 .workspace = workspace_of(ActionKind::recompute, cost_.blocks[block], true),
                 .flops = forward_flops};
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
                .reads = inputs_of(visit),
                .frees = {output_[block], saved_[block]},
                .workspace = workspace_of(ActionKind::backward, cost_.blocks[block], true),
                .flops = (2 * own < all ? 1 : 2) * forward_flops};
  action.reads.push_back(output_[block]);
  action.reads.push_back(saved_[block]);
  for (const int group : trained) action.writes.push_back(gradient_buffer_[to_index(group)]);
  // The block before makes its output anew, or has no backward that would free it.
  if (visit.block > 0 && (recomputed(visit.block - 1) || !has_backward(visit.block - 1)))
    action.frees.push_back(output_[block - 1]);
  if (visit.block == first_trained_)
    action.frees.push_back(batches_[to_index(visit.micro_batch % kBatchSlots)]);
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
  const int whole = gradient_buffer_[to_index(group)];
  const bool from_slot = layout_.reduced_from_slot(group);
  Action action{.group = group,
                .micro_batch = micro_batch,
                .writes = {groups_[to_index(group)].gradient},
                .after = {after}};
  if (from_slot) {
    action.reads = {whole};
    action.frees = {whole};
    if (shard_sum_ >= 0 && micro_batch > 0) action.writes.push_back(shard_sum_);
  }
  if (wire_ >= 0) action.writes.push_back(wire_);
  const int index = add(ActionKind::reduce, std::move(action));
  if (from_slot) gradient_reader_[whole] = index;
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
  Action norm;
  for (const Group& group : groups_) {
    if (group.gradient >= 0) norm.reads.push_back(group.gradient);
  }
  if (last_reduce_) norm.after.push_back(*last_reduce_);
  add(ActionKind::norm, std::move(norm));
  for (int g = 0; g < static_cast<int>(cost_.groups.size()); ++g) {
    const Group& group = groups_[to_index(g)];
    if (group.gradient < 0) continue;
    const GroupLayout& kind = layout_.groups[to_index(g)];
    Action update{.group = g,
                  .reads = {group.gradient},
                  .writes = {group.parameters},
                  .workspace = kind.matrix_workspace,
                  .flops = kind.matrix_flops};
    if (group.master >= 0) update.writes.push_back(group.master);
    update.writes.push_back(group.moments);
    add(ActionKind::update, std::move(update));
  }
}

void Builder::gather_resident() {
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (layout_.gathered(g) && !layout_.gathered_into_slot(g))
      add(ActionKind::gather, {.group = g, .writes = {groups_[to_index(g)].parameters}});
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
  Builder builder(ProgramKind::training, layout, cost, options,
                  training_visits(cost, options.micro_batches));
  builder.run_visits();
  builder.finish_step();
  return builder.take();
}

Program evaluation_program(const Layout& layout, const ModelCost& cost,
                           const ProgramOptions& options) {
  const ProgramOptions one = {.micro_batches = 1, .prefetch = options.prefetch};
  check_arguments(layout, cost, one);
  Builder builder(ProgramKind::evaluation, layout, cost, one,
                  evaluation_visits(static_cast<int>(cost.blocks.size())));
  builder.run_visits();
  return builder.take();
}

Program gathering_program(const Layout& layout, const ModelCost& cost) {
  const ProgramOptions options;
  check_arguments(layout, cost, options);
  Builder builder(ProgramKind::gathering, layout, cost, options, {});
  builder.gather_resident();
  return builder.take();
}

}  // namespace dstrain
