#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/index.h"
#include "engine/program/buffer_check.h"
#include "engine/program/coordinate_part.h"
#include "engine/program/lane_order.h"
#include "engine/program/line_check.h"
#include "engine/program/meaning.h"
#include "engine/program/program.h"

namespace dstrain {
namespace {

constexpr int kNone = -1;

/// As many runs of the program as use a batch buffer twice, one after the other, as one list.
Program unrolled(const Program& program) {
  const std::vector<int> batches = program.buffers_of(BufferRole::batch);
  const auto buffers = static_cast<int>(batches.size()), micro_batches = program.micro_batches;
  const int runs = 1 + (buffers + micro_batches - 1) / micro_batches;
  const auto count = static_cast<int>(program.actions.size());
  Program list = program;
  list.actions.clear();
  list.actions.reserve(to_index(runs) * program.actions.size());
  for (int run = 0; run < runs; ++run) {
    const auto in_turn = [&](std::vector<int>& ids) {
      for (int& id : ids) {
        const auto found = std::ranges::find(batches, id);
        if (found == batches.end()) continue;
        const auto i = static_cast<int>(found - batches.begin());
        id = batches[to_index((i + run * micro_batches) % buffers)];
      }
    };
    for (const Action& action : program.actions) {
      Action& copy = list.actions.emplace_back(action);
      for (int& other : copy.after) other += run * count;
      if (run > 0) {
        for (const int other : copy.after_previous) copy.after.push_back(other + (run - 1) * count);
      }
      in_turn(copy.reads);
      in_turn(copy.writes);
      in_turn(copy.frees);
    }
  }
  return list;
}

/// The rules about order; those about buffers are check_buffers.
class Checker {
 public:
  Checker(const Program& program, const Layout& layout, const ModelCost& cost)
      : program_(program),
        layout_(layout),
        cost_(cost),
        actions_(program.actions),
        own_(layout, cost, program.coordinate) {}

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
  void operands(int i);
  void direction(int i);
  void resting_state();
  void waits(int i);

  [[nodiscard]] bool training() const { return program_.kind == ProgramKind::training; }
  void gathers();
  void loads();
  void block_order();
  void step_end();

  const Program& program_;
  const Layout& layout_;
  const ModelCost& cost_;
  const std::vector<Action>& actions_;
  const CoordinatePart own_;
  const LaneOrder* order_ = nullptr;
  std::vector<std::string> problems_;
};

void Checker::fields(int i) {
  const Action& a = actions_[to_index(i)];
  using enum ActionKind;
  const bool has_part = a.kind == fetch_states || a.kind == evict_states;
  const bool has_group = a.kind == gather || a.kind == release || a.kind == clear ||
                         a.kind == reduce || a.kind == gather_sum || a.kind == update ||
                         a.kind == fetch_parameters || has_part;
  const bool has_block = runs_block(a.kind) || transfers(a.kind) || a.kind == discard ||
                         a.kind == fetch_input || a.kind == evict_input;
  const bool has_micro_batch = has_block || a.kind == load || a.kind == clear || a.kind == reduce;
  if (has_block ? a.block < 0 || a.block >= num_blocks() : a.block != kNone) {
    problem("{} names block {} of {}", name(i), a.block, num_blocks());
  } else if (runs_block(a.kind) && !own_.local(a.block)) {
    problem("{}: another coordinate of the pipeline has the block", name(i));
  } else if (transfers(a.kind)) {
    direction(i);
  }
  if (has_group ? a.group < 0 || a.group >= num_groups() : a.group != kNone) {
    problem("{} names group {} of {}", name(i), a.group, num_groups());
  }
  if (has_micro_batch ? a.micro_batch < 0 || a.micro_batch >= program_.micro_batches
                      : a.micro_batch != kNone) {
    problem("{} names micro-batch {} of {}", name(i), a.micro_batch, program_.micro_batches);
  }
  if (!problems_.empty()) return;
  const std::span<const Lane> lanes = lanes_of(a.kind);
  if (std::ranges::find(lanes, a.lane) == lanes.end())
    problem("{} runs on lane {}", name(i), lane_name(a.lane));
  const UpdateMethod method =
      has_group ? layout_.groups[to_index(a.group)].update_method : UpdateMethod::device;
  const bool in_parts = has_part || (a.kind == update && method != UpdateMethod::device);
  if (in_parts ? a.part < 0 || a.part >= layout_.parts(a.group) : a.part != kNone)
    problem("{} names part {} of {}", name(i), a.part, has_group ? layout_.parts(a.group) : 0);
  if (a.kind != update && !has_part) return;
  const Lane lane = method == UpdateMethod::device ? Lane::compute
                    : method == UpdateMethod::host ? (a.kind == update         ? Lane::host
                                                      : a.kind == fetch_states ? Lane::host_in
                                                                               : Lane::host_out)
                    : a.kind == update             ? Lane::update
                    : a.kind == fetch_states       ? Lane::fetch
                                                   : Lane::evict;
  if (a.lane != lane) problem("{} runs on lane {}", name(i), lane_name(a.lane));
}

/// A transfer goes to or comes from the coordinate that has the other side of the boundary.
void Checker::direction(int i) {
  const Action& a = actions_[to_index(i)];
  const Stages& stages = layout_.stages;
  const bool last = a.block + 1 == num_blocks();
  if (last || own_.local(a.block) == own_.local(a.block + 1)) {
    problem("{}: that output stays on its rank", name(i));
    return;
  }
  const int other = stages.rank_of(own_.local(a.block) ? a.block + 1 : a.block);
  const bool to_next = a.kind == ActionKind::send_down || a.kind == ActionKind::receive_up;
  const int ranks = stages.ranks();
  if ((program_.coordinate + (to_next ? 1 : ranks - 1)) % ranks != other)
    problem("{}: coordinate {} has the other side", name(i), other);
}

/// Buffers and collectives are those of the work, the workspace is that of the block or the update.
void Checker::operands(int i) {
  const Action& a = actions_[to_index(i)];
  const Operands wanted = operands_of(a.work, a.frees, program_.buffers);
  const auto same = [](std::vector<int> named, const std::vector<int>& ids) {
    std::ranges::sort(named);
    return named == ids;
  };
  if (!same(a.reads, wanted.reads)) problem("{} reads other buffers than its work", name(i));
  if (!same(a.writes, wanted.writes)) problem("{} writes other buffers than its work", name(i));
  if (a.comm != wanted.comm) problem("{} names other collectives than its work", name(i));
  Bytes workspace = 0;
  if (runs_block(a.kind)) {
    const bool keeps = program_.find(a.writes, BufferRole::saved) >= 0;
    workspace = workspace_of(a.kind, cost_.blocks[to_index(a.block)], keeps, program_.keeps_hidden);
  } else if (a.kind == ActionKind::update) {
    workspace = layout_.groups[to_index(a.group)].matrix_workspace;
  }
  if (a.workspace != workspace)
    problem("{} names {} bytes of workspace instead of {}", name(i), a.workspace, workspace);
}

/// Each group and block has the buffers at rest that its layout and cost ask for, once.
void Checker::resting_state() {
  const auto expect_buffer = [&](const Buffer& buffer, bool wanted, const std::string& owner) {
    const auto same = std::ranges::count_if(program_.buffers, [&](const Buffer& other) {
      return other.role == buffer.role && other.owner == buffer.owner;
    });
    const bool present = std::ranges::find(program_.buffers, buffer) != program_.buffers.end();
    if (same != int{wanted} || present != wanted)
      problem("the buffer list does not hold the {} of {} as it should", role_name(buffer.role),
              owner);
  };
  for (int g = 0; g < num_groups(); ++g) {
    const bool held = own_.holds(g);
    const GroupLayout& kind = layout_.groups[to_index(g)];
    const FlatGroup& flat = layout_.flat[to_index(g)];
    const std::string& name = cost_.groups[to_index(g)].name;
    const auto expect = [&](BufferRole role, bool wanted, Partition partition, int width,
                            Place place) {
      const std::int64_t whole =
          role == BufferRole::gradient ? layout_.whole_gradient_elements(g) : flat.padded();
      const std::int64_t elements = partition == Partition::sharded ? flat.shard_size() : whole;
      expect_buffer(
          {.role = role, .owner = g, .elements = elements, .width = width, .place = place}, wanted,
          name);
    };
    const StateWidths& w = layout_.widths;
    expect(BufferRole::parameters, held, kind.parameters, w.compute, kind.parameter_place);
    expect(BufferRole::gradient, held && kind.trainable, kind.gradients, w.gradient, Place::device);
    expect(BufferRole::master, held && kind.trainable && w.master > 0, kind.states, w.master,
           kind.state_place);
    expect_buffer(moments_of(g, layout_), held && kind.trainable, name);
    expect(BufferRole::average, held && kind.trainable && w.average > 0, kind.states, w.average,
           Place::device);
    const auto gathers = std::ranges::count_if(
        actions_, [&](const Action& a) { return a.kind == ActionKind::gather && a.group == g; });
    expect_buffer({.role = BufferRole::second_shard,
                   .owner = g,
                   .elements = layout_.second_elements(g),
                   .width = w.compute},
                  layout_.second_degree > 1 && gathers > 1, name);
  }
  for (int b = 0; b < num_blocks(); ++b) {
    const BlockCost& block = cost_.blocks[to_index(b)];
    expect_buffer({.role = BufferRole::block_state,
                   .owner = b,
                   .elements = block_state_bytes(b, layout_, cost_)},
                  own_.local(b) && block.state_bytes > 0, block.name);
  }
}

void Checker::waits(int i) {
  for (const int other : actions_[to_index(i)].after) {
    if (other < 0 || other >= i) {
      problem("{} waits for #{}, which does not stand before it", name(i), other);
    } else if (actions_[to_index(other)].lane == actions_[to_index(i)].lane) {
      problem("{} waits for {} on its own lane", name(i), name(other));
    }
  }
  for (const int other : actions_[to_index(i)].after_previous) {
    if (other < 0 || to_index(other) >= actions_.size()) {
      problem("{} waits for #{} of the run before, which has {} actions", name(i), other,
              actions_.size());
    } else if (actions_[to_index(other)].lane == actions_[to_index(i)].lane) {
      problem("{} waits for {} of the run before on its own lane", name(i), name(other));
    }
  }
  const Action& a = actions_[to_index(i)];
  const auto exists = [&](int id) {
    if (id < 0 || to_index(id) >= program_.buffers.size())
      problem("{} names buffer {} of {}", name(i), id, program_.buffers.size());
  };
  for (const auto* ids : {&a.reads, &a.writes, &a.frees}) std::ranges::for_each(*ids, exists);
  for (const Work& work : a.work) {
    for (const View& view : views_read(work)) exists(view.buffer);
    for (const View& view : views_written(work)) exists(view.buffer);
  }
}

/// Each group whose parameters rest whole and are updated in shards is gathered once, and nothing
/// else happens.
void Checker::gathers() {
  std::vector<int> times(to_index(num_groups()));
  for (int i = 0; i < static_cast<int>(actions_.size()); ++i) {
    const Action& a = actions_[to_index(i)];
    if (a.kind != ActionKind::gather) {
      problem("{} in a program that only gathers", name(i));
      continue;
    }
    ++times[to_index(a.group)];
  }
  for (int g = 0; g < num_groups(); ++g) {
    const int wanted = int{own_.holds(g) && layout_.gathered(g) && !layout_.gathered_into_slot(g)};
    if (times[to_index(g)] != wanted)
      problem("{} is gathered {} times instead of {}", cost_.groups[to_index(g)].name,
              times[to_index(g)], wanted);
  }
}

/// Micro-batches are loaded in order, each once.
void Checker::loads() {
  int next = 0;
  for (int i = 0; i < static_cast<int>(actions_.size()); ++i) {
    if (actions_[to_index(i)].kind != ActionKind::load) continue;
    if (actions_[to_index(i)].micro_batch != next++)
      problem("{} comes twice or out of order", name(i));
  }
  if (next != program_.micro_batches)
    problem("{} micro-batches of {} are loaded", next, program_.micro_batches);
}

/// Forward through the rank's blocks, backward through them in the other order, each exactly once
/// per micro-batch, and of each block one micro-batch after the other. That neighbours of other
/// ranks are in between follows from the buffers.
void Checker::block_order() {
  const auto table = [&] {
    return std::vector(to_index(program_.micro_batches),
                       std::vector<int>(to_index(num_blocks()), kNone));
  };
  auto forward = table(), recompute = table(), backward = table(), weight = table();
  for (int i = 0; i < static_cast<int>(actions_.size()); ++i) {
    const Action& a = actions_[to_index(i)];
    if (!runs_block(a.kind)) continue;
    auto& entry = (a.kind == ActionKind::forward     ? forward
                   : a.kind == ActionKind::recompute ? recompute
                   : a.kind == ActionKind::backward_weight
                       ? weight
                       : backward)[to_index(a.micro_batch)][to_index(a.block)];
    if (entry != kNone) problem("{} comes twice", name(i));
    entry = i;
  }
  const int first_trained = training() ? own_.first_trained() : num_blocks();
  for (int m = 0; m < program_.micro_batches; ++m) {
    const auto &f = forward[to_index(m)], &r = recompute[to_index(m)], &b = backward[to_index(m)],
               &w = weight[to_index(m)];
    for (std::size_t k = 0; k < to_index(num_blocks()); ++k) {
      if (!own_.local(static_cast<int>(k))) continue;
      const std::string& block = cost_.blocks[k].name;
      if (f[k] == kNone) problem("forward({}), micro-batch {} is missing", block, m);
      if (static_cast<int>(k) >= first_trained && b[k] == kNone)
        problem("backward({}), micro-batch {} is missing", block, m);
      if (k > 0 && f[k] != kNone && f[k - 1] != kNone) must_precede(f[k - 1], f[k]);
      if (b[k] != kNone && f[k] != kNone) must_precede(f[k], b[k]);
      if (k > 0 && b[k] != kNone && b[k - 1] != kNone) must_precede(b[k], b[k - 1]);
      const bool splits =
          b[k] != kNone && actions_[to_index(b[k])].kind == ActionKind::backward_input;
      if (splits != (w[k] != kNone))
        problem("backward_weight({}), micro-batch {} {}", block, m,
                splits ? "is missing" : "follows no backward_input");
      if (splits && w[k] != kNone) must_precede(b[k], w[k]);
      // A sum of fp32 numbers depends on their order.
      for (const auto* passes : {&forward, &backward, &weight}) {
        if (m == 0 || (*passes)[to_index(m)][k] == kNone) continue;
        if (const int before = (*passes)[to_index(m) - 1][k]; before != kNone)
          must_precede(before, (*passes)[to_index(m)][k]);
      }
      if (r[k] == kNone) continue;
      if (f[k] != kNone) must_precede(f[k], r[k]);
      if (b[k] != kNone) must_precede(r[k], b[k]);
      // Earlier it would hold what it saves beside what the blocks after it saved.
      if (k + 1 < b.size() && b[k + 1] != kNone) must_precede(b[k + 1], r[k]);
    }
  }
}

void Checker::step_end() {
  int norm = kNone;
  std::vector<std::vector<int>> updates(to_index(num_groups()));  // by part
  for (int g = 0; g < num_groups(); ++g) updates[to_index(g)].resize(to_index(layout_.parts(g)));
  for (int i = 0; i < static_cast<int>(actions_.size()); ++i) {
    const Action& a = actions_[to_index(i)];
    if (a.kind == ActionKind::norm) {
      if (norm != kNone) problem("{} comes twice", name(i));
      norm = i;
    }
    if (a.kind == ActionKind::update) ++updates[to_index(a.group)][to_index(std::max(a.part, 0))];
  }
  for (std::size_t g = 0; g < updates.size(); ++g) {
    const int wanted = layout_.groups[g].trainable && own_.holds(static_cast<int>(g)) ? 1 : 0;
    for (std::size_t part = 0; part < updates[g].size(); ++part) {
      if (updates[g][part] == wanted) continue;
      problem("{}{} is updated {} times instead of {}", cost_.groups[g].name,
              updates[g].size() > 1 ? fmt::format(", part {},", part) : "", updates[g][part],
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
    if (runs_block(kind) || kind == ActionKind::gather || kind == ActionKind::fetch_parameters ||
        kind == ActionKind::clear || kind == ActionKind::reduce) {
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
  for (int i = 0; i < count; ++i) operands(i);
  resting_state();

  const Program runs = unrolled(program_);
  const LaneOrder order(runs.actions);
  order_ = &order;
  if (program_.kind == ProgramKind::gathering) {
    gathers();
  } else {
    loads();
    block_order();
  }
  check_buffers(runs, count, layout_, cost_, order, problems_);
  if (training()) step_end();
  // It relies on what stands above: that list order is an order of execution.
  if (problems_.empty()) check_meaning(program_, layout_, cost_, problems_);
  return problems_;
}

}  // namespace

std::vector<std::string> check(const Program& program, const Layout& layout,
                               const ModelCost& cost) {
  return Checker(program, layout, cost).run();
}

std::vector<std::string> check(const std::vector<Program>& line, const Layout& layout,
                               const ModelCost& cost) {
  std::vector<std::string> problems;
  if (to_index(layout.pipeline_degree()) != line.size())
    problems.push_back(fmt::format("{} programs for {} coordinates of the pipeline", line.size(),
                                   layout.pipeline_degree()));
  for (std::size_t c = 0; c < line.size(); ++c) {
    if (line[c].coordinate != static_cast<int>(c))
      problems.push_back(
          fmt::format("the program of coordinate {} stands at {}", line[c].coordinate, c));
  }
  if (!problems.empty()) return problems;
  for (const Program& program : line) {
    for (const std::string& text : check(program, layout, cost))
      problems.push_back(
          line.size() == 1 ? text : fmt::format("coordinate {}: {}", program.coordinate, text));
  }
  if (problems.empty()) check_line(line, cost, problems);
  return problems;
}

}  // namespace dstrain
