#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "engine/base/error.h"
#include "engine/program/program.h"

namespace dstrain {
namespace {

/// Squared norm, loss, top-1, top-5, samples, votes to stop: six fp32 numbers.
constexpr Bytes kNormBytes = 24;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// One stay of the compute lane in a block; its parameters must be whole for that long.
struct Visit {
  int block = 0;
  int micro_batch = 0;
  bool backward = false;
};

std::vector<Visit> training_visits(int blocks, int micro_batches) {
  std::vector<Visit> visits;
  for (int m = 0; m < micro_batches; ++m) {
    for (int b = 0; b < blocks; ++b) visits.push_back({b, m, false});
    for (int b = blocks - 1; b >= 0; --b) visits.push_back({b, m, true});
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
  void release_after(int visit);
  void forward(const Visit& visit);
  void backward(const Visit& visit);
  void reduce(int group, int micro_batch, int slot, int after);
  /// Adds the waits that the first compute action after a gather has to carry.
  void await_parameters(int block, Action& action);

  const Layout& layout_;
  const ModelCost& cost_;
  const ProgramOptions& options_;
  const std::vector<Visit> visits_;
  Program program_;
  int lookahead_ = 0;

  std::vector<Parameters> parameters_;
  std::deque<FreeSlot> free_slots_;              ///< longest free first
  std::vector<std::optional<int>> slot_reader_;  ///< last reduce of each gradient slot
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
  int in_slots = 0;
  int from_slots = 0;
  for (int g = 0; g < static_cast<int>(cost.groups.size()); ++g) {
    const std::int64_t elements = layout.flat[at(g)].padded();
    if (layout.gathered_into_slot(g)) {
      ++in_slots;
      program_.gather_slot_elements = std::max(program_.gather_slot_elements, elements);
    }
    if (layout.reduced_from_slot(g)) {
      ++from_slots;
      program_.gradient_slot_elements = std::max(program_.gradient_slot_elements, elements);
    }
  }
  // One group in use, `prefetch` ahead, one whose last reader may still run.
  program_.gather_slots = std::min(options.prefetch + 2, in_slots);
  program_.gradient_slots = std::min(2, from_slots);
  if (in_slots > 0) lookahead_ = std::min(options.prefetch, program_.gather_slots - 1);
  // Each group has a slot of its own: gathered once, it stays.
  if (in_slots > 0 && program_.gather_slots == in_slots)
    lookahead_ = static_cast<int>(visits_.size());
  for (int slot = 0; slot < program_.gather_slots; ++slot) free_slots_.push_back({slot, {}});
  slot_reader_.resize(at(program_.gradient_slots));
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
  if (const auto reader = batch_reader_[at(action.slot)]) action.after.push_back(*reader);
  loads_.push_back(add(ActionKind::load, std::move(action)));
}

/// Makes sure that the parameters of a visit are gathered or on their way; false when no slot is
/// free yet.
bool Builder::gather_for(int visit) {
  const int group = visits_[at(visit)].block;
  Parameters& p = parameters_[at(group)];
  if (!layout_.gathered(group)) return true;
  if (p.held) {
    p.last_visit = visit;
    return true;
  }
  Action action{.group = group, .bytes = layout_.gather_bytes(group)};
  if (layout_.gathered_into_slot(group)) {
    if (free_slots_.empty()) return false;
    const FreeSlot slot = free_slots_.front();
    free_slots_.pop_front();
    action.slot = slot.slot;
    if (slot.released_by) action.after.push_back(*slot.released_by);
  }
  p = {.held = true, .slot = action.slot, .last_visit = visit, .awaited = {}};
  p.awaited = add(ActionKind::gather, std::move(action));
  return true;
}

/// For this visit and for those after it, until `lookahead_` other groups have come by.
void Builder::gather_ahead(int visit) {
  int groups = 0;
  for (std::size_t v = at(visit); v < visits_.size(); ++v) {
    if (v > at(visit) && visits_[v].block != visits_[v - 1].block) ++groups;
    if (groups > lookahead_ || !gather_for(static_cast<int>(v))) return;
  }
}

void Builder::release_after(int visit) {
  const int group = visits_[at(visit)].block;
  if (!layout_.gathered_into_slot(group)) return;
  Parameters& p = parameters_[at(group)];
  if (p.last_visit > visit) return;
  const int released_by = add(ActionKind::release, {.group = group, .slot = p.slot});
  free_slots_.push_back({p.slot, released_by});
  p = {};
}

void Builder::await_parameters(int block, Action& action) {
  Parameters& p = parameters_[at(block)];
  if (p.awaited) action.after.push_back(*p.awaited);
  p.awaited.reset();
}

void Builder::forward(const Visit& visit) {
  Action action{.block = visit.block,
                .micro_batch = visit.micro_batch,
                .flops = cost_.blocks[at(visit.block)].forward_flops};
  if (visit.block == 0) action.after.push_back(loads_[at(visit.micro_batch)]);
  await_parameters(visit.block, action);
  add(ActionKind::forward, std::move(action));
}

void Builder::backward(const Visit& visit) {
  const Flops forward_flops = cost_.blocks[at(visit.block)].forward_flops;
  const bool head = visit.block + 1 == static_cast<int>(cost_.blocks.size());
  if (options_.recompute && !head) {
    Action again{.block = visit.block, .micro_batch = visit.micro_batch, .flops = forward_flops};
    await_parameters(visit.block, again);
    add(ActionKind::recompute, std::move(again));
  }
  Action action{.block = visit.block, .micro_batch = visit.micro_batch, .flops = 2 * forward_flops};
  await_parameters(visit.block, action);
  const int group = visit.block;
  const bool from_slot = layout_.reduced_from_slot(group);
  if (from_slot) {
    action.slot = next_gradient_slot_;
    next_gradient_slot_ = (next_gradient_slot_ + 1) % program_.gradient_slots;
    if (const auto reader = slot_reader_[at(action.slot)]) action.after.push_back(*reader);
  }
  const int slot = action.slot;
  const int index = add(ActionKind::backward, std::move(action));
  // The batch is read until here: labels by the head, images by a recomputed stem.
  if (visit.block == 0) batch_reader_[at(visit.micro_batch % kBatchSlots)] = index;
  const bool last = visit.micro_batch + 1 == options_.micro_batches;
  if (layout_.data_ranks() > 1 && (from_slot || last)) {
    reduce(group, visit.micro_batch, slot, index);
  }
}

void Builder::reduce(int group, int micro_batch, int slot, int after) {
  const int index = add(ActionKind::reduce, {.group = group,
                                             .micro_batch = micro_batch,
                                             .slot = slot,
                                             .bytes = layout_.reduce_bytes(group),
                                             .after = {after}});
  if (slot >= 0) slot_reader_[at(slot)] = index;
  last_reduce_ = index;
}

void Builder::run_visits() {
  const int count = static_cast<int>(visits_.size());
  for (int v = 0; v < count; ++v) {
    const Visit& visit = visits_[at(v)];
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
    add(ActionKind::update, {.group = g});
  }
}

void check_arguments(const Layout& layout, const ModelCost& cost, const ProgramOptions& options) {
  DSTRAIN_CHECK(
      layout.groups.size() == cost.groups.size() && layout.flat.size() == cost.groups.size(),
      "the layout belongs to another model");
  DSTRAIN_CHECK(!cost.blocks.empty() && cost.blocks.size() == cost.groups.size(),
                "every block reads one group of its own");
  for (std::size_t b = 0; b < cost.blocks.size(); ++b) {
    DSTRAIN_CHECK(cost.blocks[b].groups == std::vector<int>{static_cast<int>(b)},
                  fmt::format("block {} must read group {} alone", cost.blocks[b].name, b));
  }
  DSTRAIN_CHECK(
      options.micro_batches >= 1 && options.prefetch >= 0,
      fmt::format("{} micro-batches, prefetch {}", options.micro_batches, options.prefetch));
}

}  // namespace

Program training_program(const Layout& layout, const ModelCost& cost,
                         const ProgramOptions& options) {
  check_arguments(layout, cost, options);
  Builder builder(layout, cost, options,
                  training_visits(static_cast<int>(cost.blocks.size()), options.micro_batches));
  builder.run_visits();
  builder.finish_step();
  return builder.take();
}

Program evaluation_program(const Layout& layout, const ModelCost& cost,
                           const ProgramOptions& options) {
  const ProgramOptions one = {.micro_batches = 1, .prefetch = options.prefetch, .recompute = false};
  check_arguments(layout, cost, one);
  Builder builder(layout, cost, one, evaluation_visits(static_cast<int>(cost.blocks.size())));
  builder.run_visits();
  Program program = builder.take();
  program.gradient_slots = 0;
  program.gradient_slot_elements = 0;
  return program;
}

}  // namespace dstrain
