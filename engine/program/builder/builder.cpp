#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/error.h"
#include "engine/program/builder/activations.h"
#include "engine/program/builder/gradients.h"
#include "engine/program/builder/inputs.h"
#include "engine/program/builder/parameters.h"
#include "engine/program/builder/states.h"
#include "engine/program/builder/transfers.h"

namespace dstrain {
namespace builder {

std::vector<GroupUse> group_uses(const Writer& writer) {
  std::vector<GroupUse> uses(writer.cost.groups.size());
  for (int b = 0; b < writer.num_blocks(); ++b) {
    if (!writer.own.local(b)) continue;
    for (const int g : writer.groups_of(b)) {
      GroupUse& use = uses[to_index(g)];
      ++use.readers;
      if (use.first_block < 0) use.first_block = b;
      use.shared = use.shared || (use.last_block >= 0 && use.last_block != b - 1);
      use.last_block = b;
    }
  }
  for (int v = 0; v < static_cast<int>(writer.visits.size()); ++v) {
    if (writer.visits[to_index(v)].pass == Pass::weight) continue;
    for (const int g : writer.groups_of(writer.visits[to_index(v)].block))
      uses[to_index(g)].last_visit = v;
  }
  return uses;
}

int max_own_groups(const Writer& writer, const std::vector<GroupUse>& uses) {
  int max = 1;
  for (int b = 0; b < writer.num_blocks(); ++b) {
    if (!writer.own.local(b)) continue;
    const auto own = std::ranges::count_if(writer.groups_of(b),
                                           [&](int g) { return !uses[to_index(g)].shared; });
    max = std::max(max, static_cast<int>(own));
  }
  return max;
}

namespace {

/// Resting state of the groups that this rank's blocks read.
void add_resting_state(Writer& writer, const std::vector<GroupUse>& uses) {
  const StateWidths& widths = writer.layout.widths;
  writer.resting.resize(writer.cost.groups.size());
  for (int g = 0; g < writer.num_groups(); ++g) {
    if (uses[to_index(g)].first_block < 0) continue;
    Resting& resting = writer.resting[to_index(g)];
    const GroupLayout& kind = writer.layout.groups[to_index(g)];
    const FlatGroup& flat = writer.layout.flat[to_index(g)];
    const auto add = [&](BufferRole role, Partition partition, int width, Place place) {
      const bool sharded = partition == Partition::sharded;
      const std::int64_t whole =
          role == BufferRole::gradient ? writer.layout.whole_gradient_elements(g) : flat.padded();
      const int id = writer.add_buffer(role, g, sharded ? flat.shard_size() : whole, width);
      writer.program.buffers[to_index(id)].place = place;
      return id;
    };
    resting.parameters =
        add(BufferRole::parameters, kind.parameters, widths.compute, kind.parameter_place);
    if (!kind.trainable) continue;
    resting.gradient = add(BufferRole::gradient, kind.gradients, widths.gradient, Place::device);
    if (widths.master > 0)
      resting.states = {add(BufferRole::master, kind.states, widths.master, kind.state_place)};
    for (const Buffer& moments : moments_of(g, writer.layout)) {
      resting.states.push_back(static_cast<int>(writer.program.buffers.size()));
      writer.program.buffers.push_back(moments);
    }
    if (widths.average > 0)
      resting.average = add(BufferRole::average, kind.states, widths.average, Place::device);
  }
  for (int b = 0; b < writer.num_blocks(); ++b) {
    const Bytes bytes = writer.own.local(b) ? block_state_bytes(b, writer.layout, writer.cost) : 0;
    writer.block_state.push_back(bytes > 0 ? writer.add_buffer(BufferRole::block_state, b, bytes, 1)
                                           : -1);
  }
}

/// Walks over the visits with all parts.
class Builder {
 public:
  Builder(Writer& writer, const std::vector<GroupUse>& uses, SlotRoom room)
      : writer_(writer),
        batches_(writer),
        parameters_(writer, uses),
        gradients_(writer, uses),
        states_(writer, uses, std::move(room)),
        activations_(writer),
        inputs_(writer, activations_),
        transfers_(writer, activations_),
        last_reader_(writer.last_reader()) {}

  void run();

 private:
  void forward(const Visit& visit);
  void backward(const Visit& visit);
  void weight(const Visit& visit);
  void recompute(const Visit& visit);
  /// What a visit of the compute lane reads: parameters, inputs and the block's input.
  [[nodiscard]] std::vector<int> inputs_of(const Visit& visit) const;
  int add(ActionKind kind, const Visit& visit, Action action);

  /// Adds to `action` the waits for what micro-batches before did on another lane: for the same of
  /// the block, as a sum of fp32 numbers depends on their order, and for what last changed or read
  /// the block's untrained state.
  void follow(ActionKind kind, Action& action) const;

  Writer& writer_;
  std::map<std::pair<ActionKind, int>, int> newest_;  ///< by kind and block, of all micro-batches
  /// By gradient buffer whose tensors several blocks read: the backward that added to it last.
  std::map<int, int> added_by_;
  Batches batches_;
  Parameters parameters_;
  Gradients gradients_;
  States states_;
  Activations activations_;
  Inputs inputs_;
  Transfers transfers_;
  const int last_reader_;  ///< block
};

std::vector<int> Builder::inputs_of(const Visit& visit) const {
  std::vector<int> reads;
  for (const int group : writer_.groups_of(visit.block)) reads.push_back(parameters_.buffer(group));
  reads.push_back(batches_.buffer(visit.micro_batch));
  if (visit.block > 0) {
    const int fetched = inputs_.fetched(visit.block - 1, visit.micro_batch);
    reads.push_back(fetched >= 0
                        ? fetched
                        : activations_.at(BufferRole::output, visit.block - 1, visit.micro_batch));
  }
  return reads;
}

void Builder::follow(ActionKind kind, Action& action) const {
  const auto wait_for = [&](int other) {
    if (writer_.action(other).lane != action.lane) action.after.push_back(other);
  };
  const auto wait_for_newest = [&](ActionKind other) {
    if (const auto before = newest_.find({other, action.block}); before != newest_.end())
      wait_for(before->second);
  };
  const bool has_state = writer_.block_state[to_index(action.block)] >= 0;
  if (kind != ActionKind::recompute) {
    wait_for_newest(kind);
    if (kind == ActionKind::forward && has_state) wait_for_newest(ActionKind::recompute);
  } else if (has_state) {
    wait_for_newest(ActionKind::forward);
  }
  for (const int id : action.writes)
    if (const auto before = added_by_.find(id); before != added_by_.end()) wait_for(before->second);
}

int Builder::add(ActionKind kind, const Visit& visit, Action action) {
  action.block = visit.block;
  action.micro_batch = visit.micro_batch;
  action.lane = writer_.lane_of(visit.micro_batch);
  follow(kind, action);
  const bool keeps = writer_.program.find(action.writes, BufferRole::saved) >= 0;
  action.workspace = workspace_of(pass_of(kind).value(), writer_.cost.blocks[to_index(visit.block)],
                                  keeps, writer_.program.keeps_hidden);
  batches_.wait(visit.micro_batch, action);
  parameters_.wait(visit.block, action);
  transfers_.wait(BufferRole::output, visit.block - 1, visit.micro_batch, action);
  inputs_.wait(visit.block - 1, visit.micro_batch, action);
  const int index = writer_.add(kind, std::move(action));
  newest_[{kind, visit.block}] = index;
  if (kind == ActionKind::backward)
    for (const int group : writer_.groups_of(visit.block))
      if (!writer_.cost.groups[to_index(group)].of_one_reader)
        added_by_[gradients_.buffer(group, visit.micro_batch)] = index;
  parameters_.read_by(visit.block, index);
  // The batch is read until the last of these: labels by the head, images by a recomputed stem.
  batches_.read_by(visit.micro_batch, index);
  for (const int id : writer_.action(index).frees) activations_.set_freed(id, index);
  states_.after_block(index);
  return index;
}

void Builder::forward(const Visit& visit) {
  using enum BufferRole;
  const int block = visit.block, micro_batch = visit.micro_batch;
  Action action{.reads = inputs_of(visit),
                .writes = {activations_.take(output, block, micro_batch)},
                .flops = writer_.cost.blocks[to_index(block)].forward_flops};
  if (writer_.has_backward(block) && !writer_.recomputed(block))
    action.writes.push_back(activations_.take(saved, block, micro_batch));
  if (const int state = writer_.block_state[to_index(block)]; state >= 0)
    (writer_.training() ? action.writes : action.reads).push_back(state);
  // Only a backward needs the block's input again.
  if (block > 0 && !writer_.has_backward(block))
    action.frees.push_back(activations_.give_back(output, block - 1, micro_batch));
  if (!writer_.training() && block + 1 == writer_.num_blocks())
    action.frees.push_back(activations_.give_back(output, block, micro_batch));
  if (block == last_reader_ && !writer_.has_backward(block))
    action.frees.push_back(batches_.buffer(micro_batch));
  const int index = add(ActionKind::forward, visit, std::move(action));
  if (writer_.own.ends_chunk(block) && !writer_.own.local(block + 1))
    transfers_.send(output, block, micro_batch, index);
  inputs_.after_forward(block, micro_batch, index);
}

void Builder::recompute(const Visit& visit) {
  using enum BufferRole;
  const int block = visit.block, micro_batch = visit.micro_batch;
  Action action{.reads = inputs_of(visit),
                .writes = {activations_.take(output, block, micro_batch),
                           activations_.take(saved, block, micro_batch)},
                .flops = block_flops(work::Pass::again, block, writer_.layout, writer_.cost)};
  action.again_flops = action.flops;
  if (const int state = writer_.block_state[to_index(block)]; state >= 0)
    action.reads.push_back(state);
  add(ActionKind::recompute, visit, std::move(action));
}

void Builder::backward(const Visit& visit) {
  using enum BufferRole;
  const int block = visit.block, micro_batch = visit.micro_batch;
  const bool split = visit.pass == Pass::input;
  if (writer_.recomputed(block)) {
    transfers_.discard(block, micro_batch);
    recompute(visit);
  }
  std::vector<int> trained;
  for (const int group : writer_.groups_of(block)) {
    if (writer_.layout.groups[to_index(group)].trainable) trained.push_back(group);
  }
  for (const int group : trained) gradients_.clear(group, micro_batch);
  const ActionKind kind = split ? ActionKind::backward_input : ActionKind::backward;
  Action action{.reads = inputs_of(visit),
                .flops = block_flops(pass_of(kind).value(), block, writer_.layout, writer_.cost),
                .again_flops = writer_.cost.blocks[to_index(block)].again_flops};
  if (split) action.writes.push_back(activations_.take(held, block, micro_batch));
  for (const BufferRole role : {output, saved}) {
    const int id = activations_.give_back(role, block, micro_batch);
    action.reads.push_back(id);
    action.frees.push_back(id);
  }
  transfers_.wait_sent(output, block, micro_batch, action);
  if (writer_.own.ends_chunk(block)) {
    const int id = activations_.at(output_gradient, block, micro_batch);
    action.reads.push_back(id);
    if (!split) action.frees.push_back(activations_.give_back(output_gradient, block, micro_batch));
    transfers_.wait(output_gradient, block, micro_batch, action);
  }
  for (const int group : trained) action.writes.push_back(gradients_.buffer(group, micro_batch));
  // Within a chunk the gradient goes from block to block at once.
  const bool hands_on =
      block > 0 && writer_.own.ends_chunk(block - 1) && writer_.has_backward(block - 1);
  if (hands_on) action.writes.push_back(activations_.take(output_gradient, block - 1, micro_batch));
  // The block before makes its output anew, has no backward that would free it, or runs elsewhere.
  const int fetched = inputs_.fetched(block - 1, micro_batch);
  if (fetched >= 0) {
    action.frees.push_back(fetched);
  } else if (block > 0 && !writer_.keeps_output(block - 1) &&
             !(split && writer_.receives_input(block))) {
    action.frees.push_back(activations_.give_back(output, block - 1, micro_batch));
  }
  if (block == last_reader_) action.frees.push_back(batches_.buffer(micro_batch));
  const int index = add(kind, visit, std::move(action));
  inputs_.freed(block - 1, micro_batch, index);
  if (!split) gradients_.after(visit, index);
  if (hands_on && !writer_.own.local(block - 1))
    transfers_.send(output_gradient, block - 1, micro_batch, index);
}

void Builder::weight(const Visit& visit) {
  using enum BufferRole;
  const int block = visit.block, micro_batch = visit.micro_batch;
  Action action{.block = block,
                .micro_batch = micro_batch,
                .reads = {activations_.give_back(held, block, micro_batch)},
                .flops = writer_.cost.blocks[to_index(block)].weight_flops};
  // What is held may be these tensors.
  if (writer_.own.ends_chunk(block))
    action.reads.push_back(activations_.give_back(output_gradient, block, micro_batch));
  if (writer_.receives_input(block))
    action.reads.push_back(activations_.give_back(output, block - 1, micro_batch));
  action.frees = action.reads;
  for (const int group : writer_.groups_of(block)) {
    if (writer_.layout.groups[to_index(group)].trainable)
      action.writes.push_back(gradients_.buffer(group, micro_batch));
  }
  const int index = writer_.add(ActionKind::backward_weight, std::move(action));
  for (const int id : writer_.action(index).frees) activations_.set_freed(id, index);
  states_.after_block(index);
  gradients_.after(visit, index);
}

void Builder::run() {
  for (int v = 0; v < static_cast<int>(writer_.visits.size()); ++v) {
    const Visit& visit = writer_.visits[to_index(v)];
    if (visit.pass == Pass::weight) {
      weight(visit);
      continue;
    }
    batches_.before(visit.micro_batch);
    parameters_.before(v);
    transfers_.before(v);
    inputs_.before(v);
    visit.pass == Pass::forward ? forward(visit) : backward(visit);
    parameters_.after(v);
  }
  transfers_.finish();
  if (writer_.training()) {
    const int norm = gradients_.finish();
    states_.finish(norm, gradients_.gathered_sums());
  }
  batches_.close();
  parameters_.close(states_.committed());
  states_.close();
  inputs_.close();
  transfers_.close();
  remove_implied_waits(writer_.program);
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
  for (std::size_t g = 0; g < cost.groups.size(); ++g) {
    const std::vector<int>& holders = layout.groups[g].stages;
    const bool ends = holders.size() == 2 && holders.front() == 0 &&
                      holders.back() == layout.pipeline_degree() - 1;
    DSTRAIN_CHECK(
        holders.size() == 1 || ends,
        cost.groups[g].name + " is read on coordinates of the pipeline that are not its ends");
  }
  DSTRAIN_CHECK(
      options.micro_batches >= 1 && options.prefetch >= 0,
      fmt::format("{} micro-batches, prefetch {}", options.micro_batches, options.prefetch));
}

Program build(ProgramKind kind, const Layout& layout, const ModelCost& cost,
              const ProgramOptions& options, int coordinate, const PipelineSchedule& schedule,
              SlotRoom room = {}) {
  check_arguments(layout, cost, options);
  DSTRAIN_CHECK(coordinate >= 0 && coordinate < layout.pipeline_degree(), "no such coordinate");
  Writer writer(kind, layout, cost, options, coordinate, schedule);
  writer.program.peer_copies = options.peer_copies;
  writer.program.input_memory = options.input_memory;
  const std::vector<GroupUse> uses = group_uses(writer);
  add_resting_state(writer, uses);
  Builder(writer, uses, std::move(room)).run();
  return std::move(writer.program);
}

}  // namespace
}  // namespace builder

Program training_program(const Layout& layout, const ModelCost& cost, const ProgramOptions& options,
                         int coordinate) {
  const PipelineSchedule schedule = options.schedule.empty()
                                        ? one_f_one_b(layout.stages, options.micro_batches)
                                        : options.schedule;
  const auto build = [&](builder::SlotRoom room) {
    return builder::build(ProgramKind::training, layout, cost, options, coordinate, schedule,
                          std::move(room));
  };
  Program program = build({});
  if (!options.transient_slots) return program;
  builder::SlotRoom room = builder::slot_room(program);
  return room.behind.empty() ? program : build(std::move(room));
}

Program evaluation_program(const Layout& layout, const ModelCost& cost,
                           const ProgramOptions& options, int coordinate) {
  const ProgramOptions one = {.micro_batches = 1, .prefetch = options.prefetch};
  return builder::build(ProgramKind::evaluation, layout, cost, one, coordinate,
                        forwards(layout.stages, 1));
}

Program gathering_program(const Layout& layout, const ModelCost& cost, int coordinate) {
  const ProgramOptions options;
  builder::check_arguments(layout, cost, options);
  const PipelineSchedule none;
  builder::Writer writer(ProgramKind::gathering, layout, cost, options, coordinate, none);
  const std::vector<builder::GroupUse> uses = builder::group_uses(writer);
  builder::add_resting_state(writer, uses);
  builder::gather_resident(writer);
  return std::move(writer.program);
}

}  // namespace dstrain
