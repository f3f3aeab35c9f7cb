#include "engine/program/buffer_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/index.h"
#include "engine/program/buffer_needs.h"
#include "engine/program/coordinate_part.h"

namespace dstrain {
namespace {

constexpr int kNoAction = -1;

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
    int summed_by = kNoAction;      ///< of a gradient whose sum was gathered: the reduce
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

  void match(int i, const std::vector<int>& ids, const std::vector<Need>& needs, const char* verb);
  [[nodiscard]] bool meets(const Need& need, int id) const;
  /// What action `i` touches of buffer `id`: of state at rest, its part of the group.
  [[nodiscard]] std::vector<Content*> touched(int i, int id);
  void read(int i, int id, Content& content);
  void write(int i, int id, Content& content);
  [[nodiscard]] bool completes_fetch(const Action& a) const;
  [[nodiscard]] bool updates_in_slot(const Action& a, BufferRole role) const;
  void free(int i, int id);
  void count_gradients(int i);
  void each_reduced_once(int runs);

  const Program& program_;
  const int run_length_;
  const Layout& layout_;
  const ModelCost& cost_;
  const LaneOrder& order_;
  const CoordinatePart own_;
  const BufferNeeds needs_;
  std::vector<std::string>& problems_;
  std::vector<std::vector<Content>> contents_;  ///< by buffer, and by part of a group at rest
  /// A gradient that collects: one of a group, and in slots of each micro-batch.
  struct Collecting {
    int cleared = kNoAction;  ///< action
    int added = 0;            ///< backwards that added to it
  };
  [[nodiscard]] Collecting& collecting(int group, int micro_batch) {
    return collecting_[{group, layout_.reduced_from_slot(group) ? micro_batch : 0}];
  }
  std::map<std::pair<int, int>, Collecting> collecting_;
  std::vector<int> held_;                  ///< by group: gather that holds it now
  std::vector<std::vector<int>> reduces_;  ///< by group
  std::vector<int> gathered_sums_;         ///< by group
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
      needs_(program, run_length, layout, cost),
      problems_(problems),
      contents_(program.buffers.size()),
      held_(cost.groups.size(), kNoAction),
      reduces_(cost.groups.size()),
      gathered_sums_(cost.groups.size(), 0) {
  for (std::size_t id = 0; id < contents_.size(); ++id) {
    const Buffer& buffer = program.buffers[id];
    const bool rests = at_rest(buffer.role);
    const bool in_parts = rests && buffer.role != BufferRole::block_state;
    contents_[id].resize(in_parts ? to_index(layout.parts(buffer.owner)) : 1, {.filled = rests});
  }
}

std::string BufferChecker::buffer_name(int id) const {
  const Buffer& buffer = program_.buffers[to_index(id)];
  std::string text = fmt::format("buffer {} ({}", id, role_name(buffer.role));
  const bool block = buffer.role == BufferRole::output || buffer.role == BufferRole::saved ||
                     buffer.role == BufferRole::output_gradient ||
                     buffer.role == BufferRole::held || buffer.role == BufferRole::block_state;
  if (buffer.owner >= 0) {
    const auto owner = to_index(buffer.owner);
    const std::size_t count = block ? cost_.blocks.size() : cost_.groups.size();
    text += owner >= count ? fmt::format(" of {}", owner)
            : block        ? " of " + cost_.blocks[owner].name
                           : " of " + cost_.groups[owner].name;
  }
  return text + ")";
}

/// A gather of what rests on the host, but for one from the second shard.
bool BufferChecker::completes_fetch(const Action& a) const {
  return a.kind == ActionKind::gather &&
         layout_.groups[to_index(a.group)].parameter_place != Place::device &&
         program_.find(a.reads, BufferRole::second_shard) < 0;
}

/// A slot is changed by an update in which what was fetched or evicted is in it.
bool BufferChecker::updates_in_slot(const Action& a, BufferRole role) const {
  const GroupLayout& kind = layout_.groups[to_index(a.group)];
  if (role == BufferRole::gradient_slot) return true;
  return role == BufferRole::state_slot &&
         (kind.state_place != Place::device || layout_.widths.master == 0);
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
                              role == BufferRole::whole_gradient || role == BufferRole::held ||
                              role == BufferRole::host_input || role == BufferRole::fetched_input;
  if (of_micro_batch && content.micro_batch != action(i).micro_batch)
    problem("{} reads {}, which holds micro-batch {}", name(i), buffer_name(id),
            content.micro_batch);
  const bool slot = role == BufferRole::state_slot || role == BufferRole::gradient_slot;
  if (slot && (content.group != action(i).group || content.part != action(i).part))
    problem("{} reads {}, which holds another part", name(i), buffer_name(id));
  // The rank's own part, which norm reads, was there before.
  const bool own_part = action(i).kind == ActionKind::norm && content.writer != kNoAction &&
                        action(content.writer).kind == ActionKind::gather_sum;
  must_precede(own_part ? content.summed_by : content.writer, i);
  content.readers.push_back(i);
}

void BufferChecker::write(int i, int id, Content& content) {
  const Action& a = action(i);
  const BufferRole role = program_.buffers[to_index(id)].role;
  const bool sums = (runs_backward(a.kind) || a.kind == ActionKind::backward_weight) &&
                    role == BufferRole::whole_gradient;
  // The own shard is there and others are gathered around it; a part is updated where it is.
  const bool changes = (role == BufferRole::gathered && completes_fetch(a)) ||
                       (a.kind == ActionKind::update && updates_in_slot(a, role));
  const bool adds = sums || changes;
  if (changes && (!content.filled || content.group != a.group || content.part != a.part))
    problem("{} changes {}, which does not hold that", name(i), buffer_name(id));
  if (!at_rest(role) && !inside_one_action(role)) {
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
  if (a.kind == ActionKind::gather_sum) content.summed_by = content.writer;
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
    Collecting& gradient = collecting(a.group, a.micro_batch);
    if (!trainable(a.group)) problem("{}: the group is frozen", name(i));
    if (gradient.cleared != kNoAction)
      problem("{} while the gradient of {} is not reduced", name(i), name(gradient.cleared));
    gradient = {.cleared = i};
  } else if (runs_backward(a.kind) || a.kind == ActionKind::backward_weight) {
    for (const int group : cost_.blocks[to_index(a.block)].groups) {
      if (!trainable(group)) continue;
      Collecting& gradient = collecting(group, a.micro_batch);
      if (gradient.cleared == kNoAction)
        problem("{} has no buffer for the gradient of {}", name(i),
                cost_.groups[to_index(group)].name);
      // In two parts, the second completes it.
      gradient.added += int{a.kind != ActionKind::backward_input};
    }
  } else if (a.kind == ActionKind::reduce) {
    Collecting& gradient = collecting(a.group, a.micro_batch);
    if (!layout_.reduced(a.group)) problem("{}: no other rank has the group", name(i));
    if (gradient.cleared == kNoAction) problem("{}: no buffer holds that gradient", name(i));
    reduces_[to_index(a.group)].push_back(i);
    std::int64_t readers = 0;
    for (std::size_t b = 0; b < cost_.blocks.size(); ++b) {
      if (own_.local(static_cast<int>(b)))
        readers += std::ranges::count(cost_.blocks[b].groups, a.group);
    }
    const std::int64_t expected =
        readers * (layout_.reduced_from_slot(a.group) ? 1 : program_.micro_batches);
    if (gradient.added != expected)
      problem("{} comes after {} of {} backwards that add to it", name(i), gradient.added,
              expected);
    gradient.cleared = kNoAction;
  } else if (a.kind == ActionKind::gather_sum) {
    if (!layout_.splits_sum(a.group)) problem("{}: the rank has the whole sum", name(i));
    const auto reduced = static_cast<int>(reduces_[to_index(a.group)].size());
    if (++gathered_sums_[to_index(a.group)] > reduced)
      problem("{} comes before the ranks have summed their parts", name(i));
  } else if (a.kind == ActionKind::update) {
    collecting(a.group, 0).cleared = kNoAction;
  }
}

/// In each run a whole gradient is reduced once, after all backwards that add to it; one in a slot
/// once per micro-batch.
void BufferChecker::each_reduced_once(int runs) {
  for (int g = 0; g < static_cast<int>(cost_.groups.size()); ++g) {
    if (!layout_.reduced(g) || !own_.holds(g)) continue;
    if (const int gathers = gathered_sums_[to_index(g)];
        gathers != (layout_.splits_sum(g) ? runs : 0))
      problem("the sum of the gradient of {} is gathered {} times instead of once",
              cost_.groups[to_index(g)].name, gathers / runs);
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
      if (a.kind == ActionKind::gather && !layout_.gathered(a.group))
        problem("{}: every rank has the whole group", name(i));
      if (completes_fetch(a)) {
        if (holder == kNoAction || action(holder).kind != ActionKind::fetch_parameters)
          problem("{} without a fetch of the own shard", name(i));
      } else if (holder != kNoAction) {
        problem("{} while {} holds the group", name(i), name(holder));
      }
      holder = i;
    } else if (a.kind == ActionKind::release || a.kind == ActionKind::update) {
      held_[to_index(a.group)] = kNoAction;  // an update changes a shard only
    } else if (runs_block(a.kind) && a.kind != ActionKind::backward_weight && training()) {
      for (const int group : cost_.blocks[to_index(a.block)].groups) {
        const int holder = held_[to_index(group)];
        const bool whole = holder != kNoAction &&
                           (!layout_.gathered(group) || action(holder).kind == ActionKind::gather);
        if ((layout_.gathered(group) || layout_.gathered_into_slot(group)) && !whole)
          problem("{} reads {}, which is not gathered", name(i),
                  cost_.groups[to_index(group)].name);
      }
    }
    const Needs expected = needs_.of(i);
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
    if (content.filled && !at_rest(role) && !inside_one_action(role))
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
