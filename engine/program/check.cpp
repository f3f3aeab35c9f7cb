#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/index.h"
#include "engine/program/lane_order.h"
#include "engine/program/program.h"

namespace dstrain {
namespace {

constexpr int kNone = -1;

bool runs_block(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::recompute ||
         kind == ActionKind::backward;
}

/// Reads the list once in order, following what every buffer holds, and asks `LaneOrder` at each
/// hand-over.
class Checker {
 public:
  Checker(const Program& program, const Layout& layout, const ModelCost& cost)
      : program_(program), layout_(layout), cost_(cost), actions_(program.actions) {}

  std::vector<std::string> run();

 private:
  template <class... Args>
  void problem(fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  [[nodiscard]] std::string name(int i) const {
    return fmt::format("#{} {}", i, describe(actions_[to_index(i)], cost_));
  }
  [[nodiscard]] bool before(int a, int b) const { return order_->before(a, b); }
  void must_precede(int a, int b) {
    if (!before(a, b)) problem("{} does not wait for {}", name(b), name(a));
  }
  [[nodiscard]] int num_blocks() const { return static_cast<int>(cost_.blocks.size()); }
  [[nodiscard]] int num_groups() const { return static_cast<int>(cost_.groups.size()); }

  void fields(int i);
  void slots(int i);
  void waits(int i);

  void block_order();
  void buffers();
  void load(int i);
  void use_batch(int i);
  void gather(int i);
  void release(int i);
  void use_parameters(int i);
  void clear(int i);
  void add_gradient(int i);
  void reduce(int i);
  void reduced_once();
  void step_end();

  /// A buffer that one action fills and later ones read before the next may fill it.
  struct Slot {
    int filled_by = kNone;  ///< kNone: free
    int freed_by = kNone;   ///< the action after which it may be filled again
  };

  const Program& program_;
  const Layout& layout_;
  const ModelCost& cost_;
  const std::vector<Action>& actions_;
  const LaneOrder* order_ = nullptr;
  bool training_ = false;
  std::vector<std::string> problems_;

  std::vector<Slot> batch_slots_, gather_slots_, gradient_slots_;
  std::vector<int> load_of_;               ///< per micro-batch
  std::vector<int> last_use_of_batch_;     ///< per micro-batch
  std::vector<int> gather_of_;             ///< per group: gather that holds it now
  std::vector<int> cleared_;               ///< per group: clear of the gradient it collects now
  std::vector<std::vector<int>> added_;    ///< per group: backwards that added to that gradient
  std::vector<std::vector<int>> reduces_;  ///< per group
};

void Checker::fields(int i) {
  const Action& a = actions_[to_index(i)];
  if (a.lane != lane_of(a.kind)) problem("{} is on lane {}", name(i), lane_name(a.lane));
  using enum ActionKind;
  const bool has_group = a.kind == gather || a.kind == release || a.kind == clear ||
                         a.kind == reduce || a.kind == update;
  const bool has_micro_batch =
      runs_block(a.kind) || a.kind == load || a.kind == clear || a.kind == reduce;
  if (runs_block(a.kind) ? a.block < 0 || a.block >= num_blocks() : a.block != kNone) {
    problem("{} names block {} of {}", name(i), a.block, num_blocks());
  }
  if (has_group ? a.group < 0 || a.group >= num_groups() : a.group != kNone) {
    problem("{} names group {} of {}", name(i), a.group, num_groups());
  }
  if (has_micro_batch ? a.micro_batch < 0 || a.micro_batch >= program_.micro_batches
                      : a.micro_batch != kNone) {
    problem("{} names micro-batch {} of {}", name(i), a.micro_batch, program_.micro_batches);
  }
}

/// The buffer named is the kind that the layout asks for, exists and is large enough.
void Checker::slots(int i) {
  const Action& a = actions_[to_index(i)];
  bool needs_slot = false;
  int count = 0;
  std::int64_t room = 0, needed = 0;
  const std::vector<std::int64_t>* sizes = nullptr;
  using enum ActionKind;
  if (a.kind == load) {
    needs_slot = true;
    count = kBatchSlots;
  } else if (a.kind == gather || a.kind == release) {
    needs_slot = layout_.gathered_into_slot(a.group);
    sizes = &program_.gather_slots;
  } else if (a.kind == clear || a.kind == reduce) {
    needs_slot = layout_.reduced_from_slot(a.group);
    sizes = &program_.gradient_slots;
  }
  if (sizes != nullptr) {
    count = static_cast<int>(sizes->size());
    if (a.slot >= 0 && a.slot < count) room = (*sizes)[to_index(a.slot)];
    needed = layout_.flat[to_index(a.group)].padded();
  }
  if (!needs_slot) {
    if (a.slot != kNone) problem("{} names slot {} and has no use for one", name(i), a.slot);
  } else if (a.slot < 0 || a.slot >= count) {
    problem("{} names slot {} of {}", name(i), a.slot, count);
  } else if (needed > room) {
    problem("{} needs {} elements, its slot has {}", name(i), needed, room);
  }
  const Bytes payload = a.kind == gather   ? layout_.gather_bytes(a.group)
                        : a.kind == reduce ? layout_.reduce_bytes(a.group)
                                           : a.bytes;
  if (a.bytes != payload) problem("{} moves {} bytes instead of {}", name(i), a.bytes, payload);
}

void Checker::waits(int i) {
  for (const int other : actions_[to_index(i)].after) {
    if (other < 0 || other >= i) {
      problem("{} waits for #{}, which does not stand before it", name(i), other);
    } else if (actions_[to_index(other)].lane == actions_[to_index(i)].lane) {
      problem("{} waits for {} on its own lane", name(i), name(other));
    }
  }
}

/// Forward through the blocks, backward through them in the other order, each exactly once per
/// micro-batch, and one micro-batch after the other.
void Checker::block_order() {
  const auto table = [&] {
    return std::vector(to_index(program_.micro_batches),
                       std::vector<int>(to_index(num_blocks()), kNone));
  };
  auto forward = table(), recompute = table(), backward = table();
  for (int i = 0; i < static_cast<int>(actions_.size()); ++i) {
    const Action& a = actions_[to_index(i)];
    if (!runs_block(a.kind)) continue;
    auto& entry =
        (a.kind == ActionKind::forward     ? forward
         : a.kind == ActionKind::recompute ? recompute
                                           : backward)[to_index(a.micro_batch)][to_index(a.block)];
    if (entry != kNone) problem("{} comes twice", name(i));
    entry = i;
  }
  const auto trains = [&](const BlockCost& block) {
    return std::ranges::any_of(block.groups,
                               [&](int g) { return layout_.groups[to_index(g)].trainable; });
  };
  const std::size_t first_trained =
      training_ ? static_cast<std::size_t>(std::ranges::find_if(cost_.blocks, trains) -
                                           cost_.blocks.begin())
                : cost_.blocks.size();
  for (int m = 0; m < program_.micro_batches; ++m) {
    const auto &f = forward[to_index(m)], &r = recompute[to_index(m)], &b = backward[to_index(m)];
    if (m > 0 && training_ && f[0] != kNone && backward[to_index(m) - 1][first_trained] != kNone) {
      must_precede(backward[to_index(m) - 1][first_trained], f[0]);
    }
    for (std::size_t k = 0; k < to_index(num_blocks()); ++k) {
      const std::string& block = cost_.blocks[k].name;
      if (f[k] == kNone) problem("forward({}), micro-batch {} is missing", block, m);
      if (k >= first_trained && b[k] == kNone)
        problem("backward({}), micro-batch {} is missing", block, m);
      if (k > 0 && f[k] != kNone && f[k - 1] != kNone) must_precede(f[k - 1], f[k]);
      if (b[k] != kNone && f.back() != kNone) must_precede(f.back(), b[k]);
      if (k > 0 && b[k] != kNone && b[k - 1] != kNone) must_precede(b[k], b[k - 1]);
      if (r[k] == kNone) continue;
      if (f[k] != kNone) must_precede(f[k], r[k]);
      if (b[k] != kNone) must_precede(r[k], b[k]);
      // Earlier it would hold what it saves beside what the blocks after it saved.
      if (k + 1 < b.size() && b[k + 1] != kNone) must_precede(b[k + 1], r[k]);
    }
  }
}

void Checker::load(int i) {
  const Action& a = actions_[to_index(i)];
  if (load_of_[to_index(a.micro_batch)] != kNone) problem("{} comes twice", name(i));
  if (a.micro_batch > 0 && load_of_[to_index(a.micro_batch - 1)] == kNone) {
    problem("{} comes before that of micro-batch {}", name(i), a.micro_batch - 1);
  }
  load_of_[to_index(a.micro_batch)] = i;
  Slot& slot = batch_slots_[to_index(a.slot)];
  if (slot.filled_by != kNone) {
    const int last_use =
        last_use_of_batch_[to_index(actions_[to_index(slot.filled_by)].micro_batch)];
    if (last_use != kNone) must_precede(last_use, i);
  }
  slot.filled_by = i;
}

void Checker::use_batch(int i) {
  const int m = actions_[to_index(i)].micro_batch;
  const int loaded = load_of_[to_index(m)];
  if (loaded == kNone) {
    problem("{} comes before its load", name(i));
  } else if (batch_slots_[to_index(actions_[to_index(loaded)].slot)].filled_by != loaded) {
    problem("{} comes after its batch was overwritten", name(i));
  } else if (last_use_of_batch_[to_index(m)] == kNone) {
    must_precede(loaded, i);
  }
  last_use_of_batch_[to_index(m)] = i;
}

void Checker::gather(int i) {
  const Action& a = actions_[to_index(i)];
  if (!layout_.gathered(a.group)) {
    problem("{}: every rank has the whole group", name(i));
    return;
  }
  int& holder = gather_of_[to_index(a.group)];
  if (holder != kNone) problem("{} while {} still holds the group", name(i), name(holder));
  holder = i;
  if (!layout_.gathered_into_slot(a.group)) return;
  Slot& slot = gather_slots_[to_index(a.slot)];
  if (slot.filled_by != kNone) {
    problem("{} overwrites slot {}, which holds {}", name(i), a.slot, name(slot.filled_by));
  } else if (slot.freed_by != kNone) {
    must_precede(slot.freed_by, i);
  }
  slot.filled_by = i;
}

void Checker::release(int i) {
  const Action& a = actions_[to_index(i)];
  if (!layout_.gathered_into_slot(a.group)) {
    problem("{}: the group stays whole", name(i));
    return;
  }
  int& holder = gather_of_[to_index(a.group)];
  Slot& slot = gather_slots_[to_index(a.slot)];
  if (holder == kNone || slot.filled_by != holder) {
    problem("{}: slot {} does not hold the group", name(i), a.slot);
    return;
  }
  holder = kNone;
  slot = {.filled_by = kNone, .freed_by = i};
}

void Checker::use_parameters(int i) {
  for (const int group : cost_.blocks[to_index(actions_[to_index(i)].block)].groups) {
    if (!layout_.gathered(group)) continue;
    const int holder = gather_of_[to_index(group)];
    if (holder == kNone) {
      problem("{} reads {}, which is not gathered", name(i), cost_.groups[to_index(group)].name);
    } else {
      must_precede(holder, i);
    }
  }
}

void Checker::clear(int i) {
  const Action& a = actions_[to_index(i)];
  if (!layout_.groups[to_index(a.group)].trainable) problem("{}: the group is frozen", name(i));
  int& holder = cleared_[to_index(a.group)];
  if (holder != kNone) problem("{} while the gradient of {} is not reduced", name(i), name(holder));
  holder = i;
  added_[to_index(a.group)].clear();
  if (!layout_.reduced_from_slot(a.group)) return;
  Slot& slot = gradient_slots_[to_index(a.slot)];
  if (slot.filled_by != kNone) {
    problem("{} overwrites gradient slot {}, taken by {} and not reduced", name(i), a.slot,
            name(slot.filled_by));
  } else if (slot.freed_by != kNone) {
    must_precede(slot.freed_by, i);
  }
  slot.filled_by = i;
}

void Checker::add_gradient(int i) {
  const Action& a = actions_[to_index(i)];
  for (const int group : cost_.blocks[to_index(a.block)].groups) {
    if (!layout_.groups[to_index(group)].trainable) continue;
    const int holder = cleared_[to_index(group)];
    if (holder == kNone || (layout_.reduced_from_slot(group) &&
                            actions_[to_index(holder)].micro_batch != a.micro_batch)) {
      problem("{} has no buffer for the gradient of {}", name(i),
              cost_.groups[to_index(group)].name);
      continue;
    }
    must_precede(holder, i);
    added_[to_index(group)].push_back(i);
  }
}

void Checker::reduce(int i) {
  const Action& a = actions_[to_index(i)];
  if (layout_.data_ranks() == 1) problem("{}: there is one data rank", name(i));
  reduces_[to_index(a.group)].push_back(i);
  int& holder = cleared_[to_index(a.group)];
  const bool from_slot = layout_.reduced_from_slot(a.group);
  if (holder == kNone || (from_slot && (actions_[to_index(holder)].slot != a.slot ||
                                        actions_[to_index(holder)].micro_batch != a.micro_batch))) {
    problem("{}: no buffer holds that gradient", name(i));
    return;
  }
  // All blocks that read the group, and for a gradient at rest all micro-batches, have added to it.
  std::size_t readers = 0;
  for (const BlockCost& block : cost_.blocks) {
    readers += static_cast<std::size_t>(std::ranges::count(block.groups, a.group));
  }
  const std::size_t expected = readers * (from_slot ? 1 : to_index(program_.micro_batches));
  if (added_[to_index(a.group)].size() != expected) {
    problem("{} comes after {} of {} backwards that add to it", name(i),
            added_[to_index(a.group)].size(), expected);
  }
  for (const int backward : added_[to_index(a.group)]) must_precede(backward, i);
  holder = kNone;
  if (from_slot) gradient_slots_[to_index(a.slot)] = {.filled_by = kNone, .freed_by = i};
}

void Checker::buffers() {
  batch_slots_.resize(kBatchSlots);
  gather_slots_.resize(program_.gather_slots.size());
  gradient_slots_.resize(program_.gradient_slots.size());
  cleared_.assign(to_index(num_groups()), kNone);
  load_of_.assign(to_index(program_.micro_batches), kNone);
  last_use_of_batch_ = load_of_;
  gather_of_.assign(to_index(num_groups()), kNone);
  added_.resize(to_index(num_groups()));
  reduces_.resize(to_index(num_groups()));
  for (int i = 0; i < static_cast<int>(actions_.size()); ++i) {
    const ActionKind kind = actions_[to_index(i)].kind;
    if (kind == ActionKind::load) load(i);
    if (kind == ActionKind::gather) gather(i);
    if (kind == ActionKind::release) release(i);
    if (runs_block(kind)) {
      use_batch(i);
      use_parameters(i);
    }
    if (kind == ActionKind::clear) clear(i);
    if (kind == ActionKind::backward) add_gradient(i);
    if (kind == ActionKind::reduce) reduce(i);
  }
  for (const Slot& slot : gather_slots_) {
    if (slot.filled_by != kNone) problem("{} is never released", name(slot.filled_by));
  }
}

/// A whole gradient is reduced once per step, after all backwards that add to it; one in a slot
/// once per micro-batch.
void Checker::reduced_once() {
  if (layout_.data_ranks() == 1) return;
  for (int g = 0; g < num_groups(); ++g) {
    if (!layout_.groups[to_index(g)].trainable) continue;
    const bool from_slot = layout_.reduced_from_slot(g);
    std::vector<int> times(from_slot ? to_index(program_.micro_batches) : 1, 0);
    for (const int i : reduces_[to_index(g)]) {
      ++times[from_slot ? to_index(actions_[to_index(i)].micro_batch) : 0];
    }
    for (std::size_t m = 0; m < times.size(); ++m) {
      if (times[m] == 1) continue;
      problem("the gradient of {}{} is reduced {} times instead of once",
              cost_.groups[to_index(g)].name, from_slot ? fmt::format(", micro-batch {}", m) : "",
              times[m]);
    }
  }
}

void Checker::step_end() {
  int norm = kNone;
  std::vector<int> updates(to_index(num_groups()), 0);
  for (int i = 0; i < static_cast<int>(actions_.size()); ++i) {
    if (actions_[to_index(i)].kind == ActionKind::norm) {
      if (norm != kNone) problem("{} comes twice", name(i));
      norm = i;
    }
    if (actions_[to_index(i)].kind == ActionKind::update)
      ++updates[to_index(actions_[to_index(i)].group)];
  }
  for (std::size_t g = 0; g < updates.size(); ++g) {
    const int wanted = layout_.groups[g].trainable ? 1 : 0;
    if (updates[g] != wanted) {
      problem("{} is updated {} times instead of {}", cost_.groups[g].name, updates[g],
              wanted == 1 ? "once" : "never");
    }
  }
  if (norm == kNone) {
    problem("norm is missing");
    return;
  }
  // Updates write what gathers and blocks read, and may begin when norm has ended.
  for (int i = 0; i < static_cast<int>(actions_.size()); ++i) {
    const ActionKind kind = actions_[to_index(i)].kind;
    if (runs_block(kind) || kind == ActionKind::gather || kind == ActionKind::clear ||
        kind == ActionKind::reduce) {
      must_precede(i, norm);
    }
    if (kind == ActionKind::update) must_precede(norm, i);
  }
}

std::vector<std::string> Checker::run() {
  if (program_.micro_batches < 1) problem("{} micro-batches", program_.micro_batches);
  for (const BlockCost& block : cost_.blocks) {
    if (block.groups.empty()) problem("{} reads no group", block.name);
  }
  const int count = static_cast<int>(actions_.size());
  for (int i = 0; i < count; ++i) {
    fields(i);
    waits(i);
  }
  if (!problems_.empty()) return problems_;  // what follows uses them as indices
  for (int i = 0; i < count; ++i) slots(i);
  if (!problems_.empty()) return problems_;

  const LaneOrder order(actions_);
  order_ = &order;
  training_ = std::any_of(actions_.begin(), actions_.end(), [](const Action& a) {
    return a.kind == ActionKind::backward || a.kind == ActionKind::reduce ||
           a.kind == ActionKind::norm || a.kind == ActionKind::update;
  });
  block_order();
  buffers();
  if (training_) {
    reduced_once();
    step_end();
  }
  return problems_;
}

}  // namespace

std::vector<std::string> check(const Program& program, const Layout& layout,
                               const ModelCost& cost) {
  return Checker(program, layout, cost).run();
}

}  // namespace dstrain
