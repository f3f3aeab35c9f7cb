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
  int group = -1;             ///< or block, that it must hold; -1: any
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
  /// What a buffer, or a part of a state at rest, holds as far as the list is read.
  struct Content {
    bool filled = false;
    int group = -1;  ///< or block
    int part = -1;
    int micro_batch = -1;
    int writer = kNoAction;         ///< that changed it last; or that freed it
    std::vector<int> readers = {};  ///< since then
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
  /// What action `i` touches of buffer `id`: of state at rest, its part of the group.
  [[nodiscard]] std::vector<Content*> touched(int i, int id);
  void read(int i, int id, Content& content);
  void write(int i, int id, Content& content);
  void offload_needs(const Action& a, Needs& needs) const;
  [[nodiscard]] bool updates_in_slot(const Action& a, BufferRole role) const;
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
  std::vector<std::vector<Content>> contents_;  ///< by buffer, and by part of a group at rest
  std::vector<bool> recomputed_;                ///< [micro-batch, block]
  std::vector<bool> evicted_;                   ///< [micro-batch, block]: output goes to the host
  std::vector<bool> backward_;                  ///< by block: this rank runs it
  int last_reader_ = kNoAction;                 ///< block that reads a batch last
  std::vector<int> cleared_;                    ///< by group: clear of the gradient it collects now
  std::vector<int> added_;                      ///< by group: backwards that added to it
  std::vector<int> held_;                       ///< by group: gather that holds it now
  std::vector<std::vector<int>> reduces_;       ///< by group
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
      evicted_(recomputed_.size()),
      backward_(cost.blocks.size()),
      cleared_(cost.groups.size(), kNoAction),
      added_(cost.groups.size()),
      held_(cost.groups.size(), kNoAction),
      reduces_(cost.groups.size()) {
  for (std::size_t id = 0; id < contents_.size(); ++id) {
    const Buffer& buffer = program.buffers[id];
    const bool rests = at_rest(buffer.role);
    const bool in_parts = rests && buffer.role != BufferRole::block_state;
    contents_[id].resize(in_parts ? to_index(layout.parts(buffer.owner)) : 1, {.filled = rests});
  }
  for (const Action& a : program.actions) {
    if (a.kind == ActionKind::evict_input)
      evicted_[to_index(a.micro_batch) * cost.blocks.size() + to_index(a.block)] = true;
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
    const Bytes bytes = cost_.blocks[b - 1].boundary_bytes();
    const bool fetched =
        a.kind != ActionKind::forward && evicted_[to_index(m) * cost_.blocks.size() + b - 1];
    input = fetched ? Need{fetched_input, -1, a.block - 1, m, bytes}
                    : Need{output, a.block - 1, -1, m, bytes};
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
    case ActionKind::fetch_parameters:
    case ActionKind::fetch_states:
    case ActionKind::evict_states:
    case ActionKind::fetch_input:
    case ActionKind::evict_input:
      offload_needs(a, needs);
      break;
    case ActionKind::gather:
      if (layout_.groups[to_index(a.group)].parameter_place != Place::device) {
        needs.writes.push_back({gathered, -1, a.group, -1, padded()});
      } else if (layout_.gathered_into_slot(a.group)) {
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
      if (layout_.groups[to_index(a.group)].update_method != UpdateMethod::device) {
        offload_needs(a, needs);
        break;
      }
      needs.reads.push_back({gradient, a.group});
      needs.writes.push_back({parameters, a.group});
      if (layout_.widths.master > 0) needs.writes.push_back({master, a.group});
      needs.writes.push_back({moments, a.group});
      break;
  }
  return needs;
}

/// A slot is changed by an update in which what was fetched or evicted is in it.
bool BufferChecker::updates_in_slot(const Action& a, BufferRole role) const {
  const GroupLayout& kind = layout_.groups[to_index(a.group)];
  if (role == BufferRole::gradient_slot) return true;
  return role == BufferRole::state_slot &&
         (kind.state_place != Place::device || layout_.widths.master == 0);
}

/// What fetch, evict and the update of a part read, write and free.
void BufferChecker::offload_needs(const Action& a, Needs& needs) const {
  using enum BufferRole;
  using enum ActionKind;
  if (a.kind == fetch_input || a.kind == evict_input) {
    const Bytes bytes = cost_.blocks[to_index(a.block)].boundary_bytes();
    const Need on_host = {host_input, a.block, -1, a.kind == fetch_input ? a.micro_batch : -1,
                          bytes};
    if (a.kind == evict_input) {
      needs.reads.push_back({output, a.block, -1, a.micro_batch, bytes});
      needs.writes.push_back(on_host);
    } else {
      needs.reads.push_back(on_host);
      needs.frees.push_back(on_host);
      needs.writes.push_back({fetched_input, -1, -1, -1, bytes});
    }
    return;
  }
  const GroupLayout& kind = layout_.groups[to_index(a.group)];
  const Need rest = {parameters, a.group};
  if (a.kind == fetch_parameters) {
    needs.reads.push_back(rest);
    needs.writes.push_back({gathered, -1, -1, -1, layout_.flat[to_index(a.group)].padded()});
    return;
  }
  const bool master_apart = layout_.widths.master > 0;
  const bool parameters_elsewhere = kind.parameter_place != Place::device,
             states_elsewhere = kind.state_place != Place::device;
  const std::int64_t elements = layout_.part(a.group, a.part).size();
  const auto states = [&](std::vector<Need>& list) {
    if (master_apart) list.push_back({master, a.group});
    list.push_back({moments, a.group});
  };
  if (kind.update_method == UpdateMethod::streamed) {
    const Bytes bytes = elements * state_slot_width(kind, layout_.widths);
    const bool fetches = states_elsewhere || !master_apart;
    const Need empty = {state_slot, -1, -1, -1, bytes}, full = {state_slot, -1, a.group, -1, bytes};
    if (a.kind == fetch_states) {
      if (states_elsewhere) states(needs.reads);
      if (parameters_elsewhere && !master_apart) needs.reads.push_back(rest);
      needs.writes.push_back(empty);
    } else if (a.kind == update) {
      needs.reads.push_back({gradient, a.group});
      needs.writes.push_back(fetches ? full : empty);
      if (!parameters_elsewhere) needs.writes.push_back(rest);
      if (!states_elsewhere) states(needs.writes);
    } else {
      needs.reads.push_back(full);
      needs.frees.push_back(full);
      if (states_elsewhere) states(needs.writes);
      if (parameters_elsewhere) needs.writes.push_back(rest);
    }
    return;
  }
  const Bytes bytes = elements * gradient_slot_width(kind, layout_.widths);
  const Need empty = {gradient_slot, -1, -1, -1, bytes},
             full = {gradient_slot, -1, a.group, -1, bytes};
  if (a.kind == evict_states) {
    needs.reads.push_back({gradient, a.group});
    if (!parameters_elsewhere && !master_apart) needs.reads.push_back(rest);
    needs.writes.push_back(empty);
  } else if (a.kind == update) {
    states(needs.writes);
    if (parameters_elsewhere) {
      needs.reads.push_back(full);
      needs.frees.push_back(full);
      needs.writes.push_back(rest);
    } else {
      needs.writes.push_back(full);
    }
  } else {
    needs.reads.push_back(full);
    needs.frees.push_back(full);
    needs.writes.push_back(rest);
  }
}

/// Where several buffers of a role may be meant, they are told apart by what they hold.
bool BufferChecker::meets(const Need& need, int id) const {
  const Buffer& buffer = program_.buffers[to_index(id)];
  if (buffer.role != need.role || (need.owner >= 0 && buffer.owner != need.owner)) return false;
  if (need.group < 0) return true;
  const Content& content = contents_[to_index(id)].front();
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

std::vector<BufferChecker::Content*> BufferChecker::touched(int i, int id) {
  std::vector<Content>& parts = contents_[to_index(id)];
  std::vector<Content*> all;
  const int part = action(i).part;
  if (part >= 0 && to_index(part) < parts.size()) {
    all.push_back(&parts[to_index(part)]);
  } else {
    for (Content& content : parts) all.push_back(&content);
  }
  return all;
}

void BufferChecker::read(int i, int id, Content& content) {
  if (!content.filled) {
    problem("{} reads {}, which holds nothing", name(i), buffer_name(id));
    return;
  }
  const BufferRole role = program_.buffers[to_index(id)].role;
  const bool of_micro_batch = role == BufferRole::batch || role == BufferRole::output ||
                              role == BufferRole::saved || role == BufferRole::output_gradient ||
                              role == BufferRole::whole_gradient ||
                              role == BufferRole::host_input || role == BufferRole::fetched_input;
  if (of_micro_batch && content.micro_batch != action(i).micro_batch)
    problem("{} reads {}, which holds micro-batch {}", name(i), buffer_name(id),
            content.micro_batch);
  const bool slot = role == BufferRole::state_slot || role == BufferRole::gradient_slot;
  if (slot && (content.group != action(i).group || content.part != action(i).part))
    problem("{} reads {}, which holds another part", name(i), buffer_name(id));
  must_precede(content.writer, i);
  content.readers.push_back(i);
}

void BufferChecker::write(int i, int id, Content& content) {
  const Action& a = action(i);
  const BufferRole role = program_.buffers[to_index(id)].role;
  const bool sums = a.kind == ActionKind::backward && role == BufferRole::whole_gradient;
  // The own shard is there and others are gathered around it; a part is updated where it is.
  const bool changes = (a.kind == ActionKind::gather && role == BufferRole::gathered &&
                        layout_.groups[to_index(a.group)].parameter_place != Place::device) ||
                       (a.kind == ActionKind::update && updates_in_slot(a, role));
  const bool adds = sums || changes;
  if (changes && (!content.filled || content.group != a.group || content.part != a.part))
    problem("{} changes {}, which does not hold that", name(i), buffer_name(id));
  if (!at_rest(role) && !scratch(role)) {
    if (sums && (!content.filled || content.micro_batch != a.micro_batch)) {
      problem("{} adds to {}, which holds no gradient of that micro-batch", name(i),
              buffer_name(id));
    } else if (!adds && content.filled) {
      problem("{} overwrites {}, which is filled by {} and not freed", name(i), buffer_name(id),
              name(content.writer));
    }
  }
  for (const int reader : content.readers) must_precede(reader, i);
  must_precede(content.writer, i);
  if (!adds) {
    content.group = role == BufferRole::fetched_input ? a.block : a.group;
    content.part = a.part;
  }
  content.micro_batch = a.micro_batch;
  content.filled = true;
  content.writer = i;
  content.readers.clear();
}

void BufferChecker::free(int i, int id) {
  Content& content = contents_[to_index(id)].front();
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
    if (a.kind == ActionKind::gather || a.kind == ActionKind::fetch_parameters) {
      int& holder = held_[to_index(a.group)];
      const bool rests_elsewhere =
          layout_.groups[to_index(a.group)].parameter_place != Place::device;
      if (a.kind == ActionKind::gather && !layout_.gathered(a.group))
        problem("{}: every rank has the whole group", name(i));
      // A gather completes what a fetch has begun.
      const bool completes = a.kind == ActionKind::gather && rests_elsewhere;
      if (completes) {
        if (holder == kNoAction || action(holder).kind != ActionKind::fetch_parameters)
          problem("{} without a fetch of the own shard", name(i));
      } else if (holder != kNoAction) {
        problem("{} while {} holds the group", name(i), name(holder));
      }
      holder = i;
    } else if (a.kind == ActionKind::release || a.kind == ActionKind::update) {
      held_[to_index(a.group)] = kNoAction;  // an update changes a shard only
    } else if (runs_block(a.kind) && training()) {
      for (const int group : cost_.blocks[to_index(a.block)].groups) {
        const int holder = held_[to_index(group)];
        const bool whole = holder != kNoAction &&
                           (!layout_.gathered(group) || action(holder).kind == ActionKind::gather);
        if ((layout_.gathered(group) || layout_.gathered_into_slot(group)) && !whole)
          problem("{} reads {}, which is not gathered", name(i),
                  cost_.groups[to_index(group)].name);
      }
    }
    const Needs expected = needs(i);
    match(i, a.reads, expected.reads, "reads");
    match(i, a.writes, expected.writes, "writes");
    for (const int id : a.reads) {
      for (Content* content : touched(i, id)) read(i, id, *content);
    }
    for (const int id : a.writes) {
      for (Content* content : touched(i, id)) write(i, id, *content);
    }
    match(i, a.frees, expected.frees, "frees");
    for (const int id : a.frees) free(i, id);
    count_gradients(i);
  }
  for (int id = 0; id < static_cast<int>(contents_.size()); ++id) {
    const BufferRole role = program_.buffers[to_index(id)].role;
    const Content& content = contents_[to_index(id)].front();
    if (content.filled && !at_rest(role) && !scratch(role))
      problem("{} is not freed, filled by {}", buffer_name(id), name(content.writer));
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
