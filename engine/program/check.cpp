#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/index.h"
#include "engine/program/activation_memory.h"
#include "engine/program/buffer_order.h"
#include "engine/program/coordinate_part.h"
#include "engine/program/lane_order.h"
#include "engine/program/line_check.h"
#include "engine/program/meaning.h"
#include "engine/program/program.h"

namespace dstrain {
namespace {

constexpr int kNone = -1;

/// Fields, the state at rest, and order; what the work computes is check_meaning.
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
  void must_precede(int a, int b) {
    if (!order_->before(a, b)) problem("{} does not wait for {}", name(b), name(a));
  }
  [[nodiscard]] int num_blocks() const { return static_cast<int>(cost_.blocks.size()); }
  [[nodiscard]] int num_groups() const { return static_cast<int>(cost_.groups.size()); }
  void fields(int i);
  void operands(int i);
  void resting_state();
  void waits(int i);
  void block_order();
  void step_end();
  void transient_memory();

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
  const KindRow& kind = kind_row(a.kind);
  const bool has_group = kind.subject == Subject::group, has_block = kind.subject == Subject::block;
  if (has_block ? a.block < 0 || a.block >= num_blocks() : a.block != kNone) {
    problem("{} names block {} of {}", name(i), a.block, num_blocks());
  } else if (runs_block(a.kind) && !own_.local(a.block)) {
    problem("{}: another coordinate of the pipeline has the block", name(i));
  }
  if (has_group ? a.group < 0 || a.group >= num_groups() : a.group != kNone) {
    problem("{} names group {} of {}", name(i), a.group, num_groups());
  }
  if (kind.micro_batch ? a.micro_batch < 0 || a.micro_batch >= program_.micro_batches
                       : a.micro_batch != kNone) {
    problem("{} names micro-batch {} of {}", name(i), a.micro_batch, program_.micro_batches);
  }
  if (!problems_.empty()) return;
  const std::span<const Lane> lanes = kind.lanes;
  if (std::ranges::find(lanes, a.lane) == lanes.end())
    problem("{} runs on lane {}", name(i), lane_name(a.lane));
  const UpdateMethod method =
      has_group ? layout_.groups[to_index(a.group)].update_method : UpdateMethod::device;
  const bool updates = kind.phase == Phase::update;
  const bool in_parts = kind.part && (!updates || method != UpdateMethod::device);
  if (in_parts ? a.part < 0 || a.part >= layout_.parts(a.group) : a.part != kNone)
    problem("{} names part {} of {}", name(i), a.part, has_group ? layout_.parts(a.group) : 0);
  if (!kind.part) return;
  // The last lane is for states that the CPU updates, the one before for those that are streamed.
  const Lane lane = method == UpdateMethod::device ? Lane::compute
                    : method == UpdateMethod::host ? lanes.back()
                                                   : lanes[lanes.size() - 2];
  if (a.lane != lane) problem("{} runs on lane {}", name(i), lane_name(a.lane));
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
  if (const auto pass = pass_of(a.kind)) {
    const bool keeps = program_.find(a.writes, BufferRole::saved) >= 0;
    workspace = workspace_of(*pass, cost_.blocks[to_index(a.block)], keeps, program_.keeps_hidden);
  } else if (kind_row(a.kind).phase == Phase::update) {
    workspace = layout_.groups[to_index(a.group)].matrix_workspace;
  }
  if (a.workspace != workspace)
    problem("{} names {} bytes of workspace instead of {}", name(i), a.workspace, workspace);
}

/// Each group and block has the buffers at rest that its layout and cost ask for, once.
void Checker::resting_state() {
  const auto expect_buffer = [&](const Buffer& buffer, bool wanted, const std::string& owner) {
    const auto same = std::ranges::count_if(program_.buffers, [&](const Buffer& other) {
      return other.role == buffer.role && other.owner == buffer.owner &&
             other.moment == buffer.moment;
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
    const std::vector<Buffer> moments = moments_of(g, layout_);
    for (const Buffer& buffer : moments) expect_buffer(buffer, held && kind.trainable, name);
    const auto of_group = std::ranges::count_if(program_.buffers, [&](const Buffer& other) {
      return other.role == BufferRole::moments && other.owner == g;
    });
    if (held && kind.trainable && std::cmp_not_equal(of_group, moments.size()))
      problem("the buffer list holds {} moments of {} instead of {}", of_group, name,
              moments.size());
    expect(BufferRole::average, held && kind.trainable && w.average > 0, kind.states, w.average,
           Place::device);
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

/// A block takes one micro-batch after the other, as sums of fp32 numbers depend on their
/// order. A recomputation before the backward of the next block would hold what it saves beside
/// what the blocks behind it saved.
void Checker::block_order() {
  using Indices = std::vector<std::vector<int>>;  // by block, of each micro-batch
  Indices forward(to_index(num_blocks())), backward = forward, weight = forward;
  for (int i = 0; i < static_cast<int>(actions_.size()); ++i) {
    const Action& a = actions_[to_index(i)];
    const std::optional<work::Pass> pass = pass_of(a.kind);
    if (!pass) continue;
    if (*pass == work::Pass::again) {
      if (a.block + 1 == num_blocks() || !own_.local(a.block + 1)) continue;
      const std::vector<int>& next = backward[to_index(a.block) + 1];
      if (next.size() <= to_index(a.micro_batch))
        problem("{} comes before the backward of the next block", name(i));
      else
        must_precede(next[to_index(a.micro_batch)], i);
      continue;
    }
    std::vector<int>& same = (*pass == work::Pass::forward  ? forward
                              : *pass == work::Pass::weight ? weight
                                                            : backward)[to_index(a.block)];
    if (!same.empty()) {
      if (actions_[to_index(same.back())].micro_batch >= a.micro_batch)
        problem("{} comes after {}", name(i), name(same.back()));
      must_precede(same.back(), i);
    }
    same.push_back(i);
  }
}

/// Norm sums what blocks add up, and decides what updates do.
void Checker::step_end() {
  const auto phase = [](const Action& action) { return kind_row(action.kind).phase; };
  const auto norm = std::ranges::find_if(
      actions_, [&](const Action& action) { return phase(action) == Phase::norm; });
  if (norm == actions_.end()) return;
  const auto index = static_cast<int>(norm - actions_.begin());
  for (int i = 0; i < static_cast<int>(actions_.size()); ++i) {
    const Action& action = actions_[to_index(i)];
    if (runs_block(action.kind)) must_precede(i, index);
    if (phase(action) == Phase::update) must_precede(index, i);
  }
}

/// Transient slots take memory that compute lanes have left, and are empty before these need it.
void Checker::transient_memory() {
  const std::vector<TransientSlot> slots = transient_slots(program_);
  if (slots.empty()) return;
  for (const TransientSlot& slot : slots) {
    const Buffer& buffer = program_.buffers[to_index(slot.buffer)];
    if (buffer.role != BufferRole::state_slot || buffer.place != Place::device)
      problem("buffer {}, {}, is transient", slot.buffer, role_name(buffer.role));
    int left = kNone;  // the last action whose memory the slot may take
    for (int i = 0; i < slot.taken; ++i)
      if (computes(actions_[to_index(i)].lane)) left = i;
    if (left >= 0 && !order_->before(left, slot.taken))
      problem("{} does not wait for {}, whose memory it takes", name(slot.taken), name(left));
    if (slot.taken < 0 || slot.returned < 0 || slot.returned > slot.taken)
      problem("nothing of a compute lane waits until transient slot {} is empty", slot.buffer);
  }
  const Bytes peak = peak_activations(program_),
              without = std::ranges::max(activation_memory(program_));
  if (peak > without)
    problem("transient slots make the peak of activations {} bytes higher", peak - without);
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

  const LaneOrder order(actions_, buffer_runs(program_));
  order_ = &order;
  block_order();
  check_buffer_order(program_, layout_, cost_, order, problems_);
  step_end();
  transient_memory();
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
