#include "engine/program/buffer_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/index.h"
#include "engine/program/own_part.h"

namespace dstrain {
namespace {

constexpr int kNoAction = -1;

/// Outputs, saved tensors, batches and slots hold nothing until they are filled; the rest holds
/// state of the run.
bool at_rest(BufferRole role) {
  using enum BufferRole;
  return role == parameters || role == gradient || role == master || role == moments ||
         role == block_state;
}

/// Used inside one action only.
bool scratch(BufferRole role) { return role == BufferRole::shard_sum || role == BufferRole::wire; }

/// A buffer that an action of some kind must name.
struct Need {
  BufferRole role = BufferRole::parameters;
  int owner = -1;             ///< group or block; -1: any buffer of the role
  int group = -1;             ///< that it must hold; -1: any
  int micro_batch = -1;       ///< that it must hold; -1: any
  std::int64_t elements = 0;  ///< at least
};

struct Needs {
  std::vector<Need> reads, writes, frees;
};

/// Reads the runs once in order and follows what every buffer holds.
class BufferChecker {
 public:
  BufferChecker(const Program& program, int run_length, const Layout& layout, const ModelCost& cost,
                const LaneOrder& order, std::vector<std::string>& problems);
  void run();

 private:
  /// What a buffer holds as far as the list is read.
  struct Content {
    bool filled = false;
    int group = -1;
    int micro_batch = -1;
    int writer = kNoAction;    ///< that changed it last; or that freed it
    std::vector<int> readers;  ///< since then
  };

  template <class... Args>
  void problem(fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  [[nodiscard]] const Action& action(int i) const { return program_.actions[to_index(i)]; }
  [[nodiscard]] std::string name(int i) const {
    return fmt::format("#{} {}{}", i % run_length_, describe(action(i), cost_),
                       i < run_length_ ? "" : fmt::format(", run {}", i / run_length_ + 1));
  }
  [[nodiscard]] std::string buffer_name(int id) const;
  void must_precede(int a, int b) {
    if (a != kNoAction && a != b && !order_.before(a, b))
      problem("{} does not wait for {}", name(b), name(a));
  }
  [[nodiscard]] bool training() const { return program_.kind == ProgramKind::training; }
  [[nodiscard]] bool trainable(int group) const {
    return layout_.groups[to_index(group)].trainable;
  }

  [[nodiscard]] Needs needs(int i) const;
  void block_needs(const Action& a, Needs& needs) const;
  void reduce_needs(const Action& a, Needs& needs) const;
  void match(int i, const std::vector<int>& ids, const std::vector<Need>& needs, const char* verb);
  [[nodiscard]] bool meets(const Need& need, int id) const;
  void read(int i, int id);
  void write(int i, int id);
  void free(int i, int id);
  void count_gradients(int i);
  void each_reduced_once(int runs);

  const Program& program_;
  const int run_length_;
  const Layout& layout_;
  const ModelCost& cost_;
  const LaneOrder& order_;
  const OwnPart own_;
  std::vector<std::string>& problems_;
  std::vector<Content> contents_;          ///< by buffer
  std::vector<bool> recomputed_;           ///< [micro-batch, block]
  std::vector<bool> backward_;             ///< by block: this rank runs it
  int last_reader_ = kNoAction;            ///< block that reads a batch last
  std::vector<int> cleared_;               ///< by group: clear of the gradient it collects now
  std::vector<int> added_;                 ///< by group: backwards that added to it
  std::vector<int> held_;                  ///< by group: gather that holds it now
  std::vector<std::vector<int>> reduces_;  ///< by group
};

BufferChecker::BufferChecker(const Program& program, int run_length, const Layout& layout,
                             const ModelCost& cost, const LaneOrder& order,
                             std::vector<std::string>& problems)
    : program_(program),
      run_length_(run_length),
      layout_(layout),
      cost_(cost),
      order_(order),
      own_(layout, cost, program.coordinate),
      problems_(problems),
      contents_(program.buffers.size()),
      recomputed_(to_index(program.micro_batches) * cost.blocks.size()),
      backward_(cost.blocks.size()),
      cleared_(cost.groups.size(), kNoAction),
      added_(cost.groups.size()),
      held_(cost.groups.size(), kNoAction),
      reduces_(cost.groups.size()) {
  for (std::size_t id = 0; id < contents_.size(); ++id)
    contents_[id].filled = at_rest(program.buffers[id].role);
  for (const Action& a : program.actions) {
    if (a.kind == ActionKind::backward) backward_[to_index(a.block)] = true;
    if (a.kind == ActionKind::recompute)
      recomputed_[to_index(a.micro_batch) * cost.blocks.size() + to_index(a.block)] = true;
  }
  const auto first_backward = std::ranges::find(backward_, true);
  if (first_backward != backward_.end()) {
    last_reader_ = static_cast<int>(first_backward - backward_.begin());
  } else {
    for (int b = 0; b < static_cast<int>(cost.blocks.size()); ++b) {
      if (own_.local(b)) last_reader_ = b;
    }
  }
}

std::string BufferChecker::buffer_name(int id) const {
  const Buffer& buffer = program_.buffers[to_index(id)];
  std::string text = fmt::format("buffer {} ({}", id, role_name(buffer.role));
  const bool block = buffer.role == BufferRole::output || buffer.role == BufferRole::saved ||
                     buffer.role == BufferRole::output_gradient ||
                     buffer.role == BufferRole::block_state;
  if (buffer.owner >= 0) {
    const auto owner = to_index(buffer.owner);
    const std::size_t count = block ? cost_.blocks.size() : cost_.groups.size();
    text += owner >= count ? fmt::format(" of {}", owner)
            : block        ? " of " + cost_.blocks[owner].name
                           : " of " + cost_.groups[owner].name;
  }
  return text + ")";
}

/// What forward, recompute and backward read, write and free.
void BufferChecker::block_needs(const Action& a, Needs& needs) const {
  using enum BufferRole;
  const std::size_t b = to_index(a.block);
  const BlockCost& block = cost_.blocks[b];
  const int m = a.micro_batch;
  const auto again = [&](std::size_t k) {
    return recomputed_[to_index(m) * cost_.blocks.size() + k];
  };
  const Need output_of_block = {output, a.block, -1, m, block.boundary_bytes()};
  const Need saved_of_block = {saved, a.block, -1, m, block.saved_bytes};
  for (const int g : block.groups) {
    const std::int64_t elements = layout_.flat[to_index(g)].padded();
    if (layout_.gathered_into_slot(g)) {
      needs.reads.push_back({gathered, -1, g, -1, elements});
    } else {
      needs.reads.push_back({parameters, g, -1, -1, elements});
    }
  }
  needs.reads.push_back({batch, -1, -1, m, cost_.batch_bytes});
  Need input;
  if (b > 0) {
    input = {output, a.block - 1, -1, m, cost_.blocks[b - 1].boundary_bytes()};
    needs.reads.push_back(input);
  }
  if (block.state_bytes > 0 && a.kind != ActionKind::backward) {
    const bool changes = training() && a.kind == ActionKind::forward;
    (changes ? needs.writes : needs.reads).push_back({block_state, a.block});
  }
  if (a.kind != ActionKind::backward) {
    needs.writes.push_back(output_of_block);
    const bool keeps = a.kind == ActionKind::recompute || (backward_[b] && !again(b));
    if (keeps) needs.writes.push_back(saved_of_block);
    if (a.kind == ActionKind::recompute) return;
    if (b > 0 && !backward_[b]) needs.frees.push_back(input);
    if (!training() && b + 1 == cost_.blocks.size()) needs.frees.push_back(output_of_block);
    if (a.block == last_reader_ && !backward_[b]) needs.frees.push_back({batch, -1, -1, m});
    return;
  }
  needs.reads.push_back(output_of_block);
  needs.reads.push_back(saved_of_block);
  needs.frees = {output_of_block, saved_of_block};
  if (b > 0 && (again(b - 1) || !backward_[b - 1])) needs.frees.push_back(input);
  if (a.block == last_reader_) needs.frees.push_back({batch, -1, -1, m});
  if (own_.ends_chunk(a.block)) {
    const Need own = {output_gradient, a.block, -1, m, block.boundary_bytes()};
    needs.reads.push_back(own);
    needs.frees.push_back(own);
  }
  if (b > 0 && own_.ends_chunk(a.block - 1) && a.block > own_.first_trained())
    needs.writes.push_back(
        {output_gradient, a.block - 1, -1, m, cost_.blocks[b - 1].boundary_bytes()});
  for (const int g : block.groups) {
    if (!trainable(g)) continue;
    const std::int64_t elements = layout_.flat[to_index(g)].padded();
    if (layout_.reduced_from_slot(g)) {
      needs.writes.push_back({whole_gradient, -1, g, m, elements});
    } else {
      needs.writes.push_back({gradient, g, -1, -1, elements});
    }
  }
}

void BufferChecker::reduce_needs(const Action& a, Needs& needs) const {
  using enum BufferRole;
  const FlatGroup& flat = layout_.flat[to_index(a.group)];
  const bool narrow = layout_.widths.reduce_wire < layout_.widths.gradient;
  needs.writes.push_back({gradient, a.group});
  if (layout_.reduced_from_slot(a.group)) {
    const Need whole = {whole_gradient, -1, a.group, a.micro_batch, flat.padded()};
    needs.reads.push_back(whole);
    needs.frees.push_back(whole);
    if (!narrow && a.micro_batch > 0)
      needs.writes.push_back({shard_sum, -1, -1, -1, flat.shard_size()});
  }
  if (narrow) needs.writes.push_back({wire, -1, -1, -1, flat.padded()});
}

Needs BufferChecker::needs(int i) const {
  const Action& a = action(i);
  Needs needs;
  using enum BufferRole;
  const auto padded = [&] { return layout_.flat[to_index(a.group)].padded(); };
  switch (a.kind) {
    case ActionKind::load:
      needs.writes.push_back({batch, -1, -1, -1, cost_.batch_bytes});
      break;
    case ActionKind::gather:
      if (layout_.gathered_into_slot(a.group)) {
        needs.reads.push_back({parameters, a.group});
        needs.writes.push_back({gathered, -1, -1, -1, padded()});
      } else {
        needs.writes.push_back({parameters, a.group, -1, -1, padded()});
      }
      break;
    case ActionKind::release:
      needs.frees.push_back({gathered, -1, a.group});
      break;
    case ActionKind::send_down:
    case ActionKind::send_up:
    case ActionKind::receive_down:
    case ActionKind::receive_up:
    case ActionKind::discard: {
      // A rank sends its own blocks' outputs and receives the gradients of them.
      const bool receives = a.kind == ActionKind::receive_down || a.kind == ActionKind::receive_up;
      const Need tensor = {own_.local(a.block) != receives ? output : output_gradient, a.block, -1,
                           a.micro_batch, cost_.blocks[to_index(a.block)].boundary_bytes()};
      (a.kind == ActionKind::discard ? needs.frees
       : receives                    ? needs.writes
                                     : needs.reads)
          .push_back(tensor);
      break;
    }
    case ActionKind::forward:
    case ActionKind::recompute:
    case ActionKind::backward:
      block_needs(a, needs);
      break;
    case ActionKind::clear:
      if (layout_.reduced_from_slot(a.group)) {
        needs.writes.push_back({whole_gradient, -1, -1, -1, padded()});
      } else {
        needs.writes.push_back({gradient, a.group, -1, -1, padded()});
      }
      break;
    case ActionKind::reduce:
      reduce_needs(a, needs);
      break;
    case ActionKind::norm:
      for (int g = 0; g < static_cast<int>(cost_.groups.size()); ++g) {
        if (trainable(g) && own_.holds(g)) needs.reads.push_back({gradient, g});
      }
      break;
    case ActionKind::update:
      needs.reads.push_back({gradient, a.group});
      needs.writes.push_back({parameters, a.group});
      if (layout_.widths.master > 0) needs.writes.push_back({master, a.group});
      needs.writes.push_back({moments, a.group});
      break;
  }
  return needs;
}

/// Where several buffers of a role may be meant, they are told apart by what they hold.
bool BufferChecker::meets(const Need& need, int id) const {
  const Buffer& buffer = program_.buffers[to_index(id)];
  if (buffer.role != need.role || (need.owner >= 0 && buffer.owner != need.owner)) return false;
  if (need.group < 0) return true;
  const Content& content = contents_[to_index(id)];
  return content.group == need.group &&
         (need.micro_batch < 0 || content.micro_batch == need.micro_batch);
}

/// `ids` are exactly the buffers that `needs` asks for, and large enough.
void BufferChecker::match(int i, const std::vector<int>& ids, const std::vector<Need>& needs,
                          const char* verb) {
  std::vector<bool> taken(ids.size());
  for (const Need& need : needs) {
    std::size_t found = 0;
    while (found < ids.size() && (taken[found] || !meets(need, ids[found]))) ++found;
    if (found == ids.size()) {
      const std::string of = need.group >= 0   ? " of " + cost_.groups[to_index(need.group)].name
                             : need.owner >= 0 ? fmt::format(" {}", need.owner)
                                               : "";
      problem("{} {} no {}{}", name(i), verb, role_name(need.role), of);
      continue;
    }
    taken[found] = true;
    const int id = ids[found];
    const Buffer& buffer = program_.buffers[to_index(id)];
    if (need.elements > buffer.elements)
      problem("{} needs {} elements, {} has {}", name(i), need.elements, buffer_name(id),
              buffer.elements);
  }
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (!taken[k]) problem("{} {} {} without need", name(i), verb, buffer_name(ids[k]));
  }
}

void BufferChecker::read(int i, int id) {
  Content& content = contents_[to_index(id)];
  if (!content.filled) {
    problem("{} reads {}, which holds nothing", name(i), buffer_name(id));
    return;
  }
  const BufferRole role = program_.buffers[to_index(id)].role;
  const bool of_micro_batch = role == BufferRole::batch || role == BufferRole::output ||
                              role == BufferRole::saved || role == BufferRole::output_gradient ||
                              role == BufferRole::whole_gradient;
  if (of_micro_batch && content.micro_batch != action(i).micro_batch)
    problem("{} reads {}, which holds micro-batch {}", name(i), buffer_name(id),
            content.micro_batch);
  must_precede(content.writer, i);
  content.readers.push_back(i);
}

void BufferChecker::write(int i, int id) {
  Content& content = contents_[to_index(id)];
  const Action& a = action(i);
  const BufferRole role = program_.buffers[to_index(id)].role;
  const bool adds = a.kind == ActionKind::backward && role == BufferRole::whole_gradient;
  if (!at_rest(role) && !scratch(role)) {
    if (adds && (!content.filled || content.micro_batch != a.micro_batch)) {
      problem("{} adds to {}, which holds no gradient of that micro-batch", name(i),
              buffer_name(id));
    } else if (!adds && content.filled) {
      problem("{} overwrites {}, which is filled by {} and not freed", name(i), buffer_name(id),
              name(content.writer));
    }
  }
  for (const int reader : content.readers) must_precede(reader, i);
  must_precede(content.writer, i);
  if (!adds) content.group = a.group;
  content.micro_batch = a.micro_batch;
  content.filled = true;
  content.writer = i;
  content.readers.clear();
}

void BufferChecker::free(int i, int id) {
  Content& content = contents_[to_index(id)];
  const Action& a = action(i);
  if (!content.filled) {
    problem("{} frees {}, which holds nothing", name(i), buffer_name(id));
    return;
  }
  if (a.micro_batch >= 0 && content.micro_batch != a.micro_batch)
    problem("{} frees {}, which holds micro-batch {}", name(i), buffer_name(id),
            content.micro_batch);
  for (const int reader : content.readers) must_precede(reader, i);
  if (content.readers.empty()) must_precede(content.writer, i);
  content = {};
  content.writer = i;
}

/// Every trained group of a block has a gradient that collects; all backwards have added to what is
/// reduced.
void BufferChecker::count_gradients(int i) {
  const Action& a = action(i);
  if (a.kind == ActionKind::clear) {
    const std::size_t g = to_index(a.group);
    if (!trainable(a.group)) problem("{}: the group is frozen", name(i));
    if (cleared_[g] != kNoAction)
      problem("{} while the gradient of {} is not reduced", name(i), name(cleared_[g]));
    cleared_[g] = i;
    added_[g] = 0;
  } else if (a.kind == ActionKind::backward) {
    for (const int group : cost_.blocks[to_index(a.block)].groups) {
      if (!trainable(group)) continue;
      if (cleared_[to_index(group)] == kNoAction)
        problem("{} has no buffer for the gradient of {}", name(i),
                cost_.groups[to_index(group)].name);
      ++added_[to_index(group)];
    }
  } else if (a.kind == ActionKind::reduce) {
    const std::size_t g = to_index(a.group);
    if (layout_.data_ranks() == 1) problem("{}: there is one data rank", name(i));
    if (cleared_[g] == kNoAction) problem("{}: no buffer holds that gradient", name(i));
    reduces_[g].push_back(i);
    std::int64_t readers = 0;
    for (const BlockCost& block : cost_.blocks)
      readers += std::ranges::count(block.groups, a.group);
    const std::int64_t expected =
        readers * (layout_.reduced_from_slot(a.group) ? 1 : program_.micro_batches);
    if (added_[g] != expected)
      problem("{} comes after {} of {} backwards that add to it", name(i), added_[g], expected);
    cleared_[g] = kNoAction;
  } else if (a.kind == ActionKind::update) {
    cleared_[to_index(a.group)] = kNoAction;
  }
}

/// In each run a whole gradient is reduced once, after all backwards that add to it; one in a slot
/// once per micro-batch.
void BufferChecker::each_reduced_once(int runs) {
  if (layout_.data_ranks() == 1) return;
  for (int g = 0; g < static_cast<int>(cost_.groups.size()); ++g) {
    if (!trainable(g) || !own_.holds(g)) continue;
    const bool from_slot = layout_.reduced_from_slot(g);
    std::vector<int> times(from_slot ? to_index(program_.micro_batches) : 1, 0);
    for (const int i : reduces_[to_index(g)])
      ++times[from_slot ? to_index(action(i).micro_batch) : 0];
    for (std::size_t m = 0; m < times.size(); ++m) {
      if (times[m] == runs) continue;
      problem("the gradient of {}{} is reduced {} times instead of once",
              cost_.groups[to_index(g)].name, from_slot ? fmt::format(", micro-batch {}", m) : "",
              times[m] / runs);
    }
  }
}

void BufferChecker::run() {
  int runs = 0;
  for (int i = 0; i < static_cast<int>(program_.actions.size()); ++i) {
    if (i % run_length_ == 0 && runs++ > 0 && !problems_.empty()) {
      --runs;
      break;  // later runs repeat what is wrong in this one
    }
    const Action& a = action(i);
    if (a.kind == ActionKind::gather) {
      int& holder = held_[to_index(a.group)];
      if (!layout_.gathered(a.group)) problem("{}: every rank has the whole group", name(i));
      if (holder != kNoAction) problem("{} while {} holds the group", name(i), name(holder));
      holder = i;
    } else if (a.kind == ActionKind::release || a.kind == ActionKind::update) {
      held_[to_index(a.group)] = kNoAction;  // an update changes a shard only
    } else if (runs_block(a.kind) && training()) {
      for (const int group : cost_.blocks[to_index(a.block)].groups) {
        if (layout_.gathered(group) && held_[to_index(group)] == kNoAction)
          problem("{} reads {}, which is not gathered", name(i),
                  cost_.groups[to_index(group)].name);
      }
    }
    const Needs expected = needs(i);
    match(i, a.reads, expected.reads, "reads");
    match(i, a.writes, expected.writes, "writes");
    for (const int id : a.reads) read(i, id);
    for (const int id : a.writes) write(i, id);
    match(i, a.frees, expected.frees, "frees");
    for (const int id : a.frees) free(i, id);
    count_gradients(i);
  }
  for (int id = 0; id < static_cast<int>(contents_.size()); ++id) {
    const BufferRole role = program_.buffers[to_index(id)].role;
    if (contents_[to_index(id)].filled && !at_rest(role) && !scratch(role))
      problem("{} is not freed, filled by {}", buffer_name(id),
              name(contents_[to_index(id)].writer));
  }
  if (training()) each_reduced_once(runs);
}

}  // namespace

void check_buffers(const Program& program, int run_length, const Layout& layout,
                   const ModelCost& cost, const LaneOrder& order,
                   std::vector<std::string>& problems) {
  BufferChecker(program, run_length, layout, cost, order, problems).run();
}

}  // namespace dstrain
