#include <algorithm>

#include "engine/program/follower.h"

/// Runs of blocks, norm and updates: what a step computes.
namespace dstrain::meaning {

std::uint32_t Follower::wanted_axes(int group) const {
  std::uint32_t bits = axis_bits(equal_axes(layout_, cost_.groups[to_index(group)].cut), layout_);
  if (layout_.groups[to_index(group)].stages.size() > 1) bits |= axis_bits(CommAxis::ends, layout_);
  return bits;
}

bool Follower::complete(const Value& value, int group) {
  if (value.kind != Kind::gradient || value.owner != group || value.coded) {
    problem("reads {} where the gradient of {} should be", kind_name(value.kind),
            cost_.groups[to_index(group)].name);
    return false;
  }
  const std::string& of = cost_.groups[to_index(group)].name;
  const bool once = value.added.size() ==
                        2 * readers_[to_index(group)].size() * to_index(program_.micro_batches) &&
                    std::ranges::all_of(value.added, [](std::uint8_t times) { return times == 1; });
  if (!once) problem("the gradient of {} is not that of every micro-batch once", of);
  if (value.summed != wanted_axes(group))
    problem("the gradient of {} is not summed over all ranks with the same weights once", of);
  if (value.scale != 1) problem("the gradient of {} is scaled by {}", of, value.scale);
  return once && value.summed == wanted_axes(group) && value.scale == 1;
}

std::string Follower::text(const Value& value) const {
  const bool block = value.kind != Kind::parameters && value.kind != Kind::state &&
                     value.kind != Kind::gradient && value.kind != Kind::batch;
  const std::string owner = value.owner < 0 ? ""
                            : block         ? " of " + cost_.blocks[to_index(value.owner)].name
                                            : " of " + cost_.groups[to_index(value.owner)].name;
  const std::string micro_batch =
      value.micro_batch < 0 ? "" : fmt::format(", micro-batch {}", value.micro_batch);
  return kind_name(value.kind) + owner + micro_batch;
}

/// In a backward in two parts the first keeps what the second needs.
std::vector<Follower::Named> Follower::read_by(const work::Run& run) const {
  using work::Pass;
  const int block = run.block;
  const BlockCost& own = cost_.blocks[to_index(block)];
  std::vector<Named> list;
  const auto add = [&](Kind kind, int of, Bytes bytes) {
    list.push_back({.value = of_block(kind, of), .elements = bytes});
  };
  const bool backward = run.pass == Pass::backward || run.pass == Pass::input;
  if (run.pass == Pass::weight) {
    add(Kind::held, block, own.held_bytes);
    if (block > 0 && !own_.local(block - 1)) add(Kind::output, block - 1, boundary(block - 1));
  } else {
    for (const int g : own.groups)
      list.push_back({.value = {.kind = Kind::parameters, .owner = g}, .elements = padded(g)});
    add(Kind::batch, kNone, cost_.batch_bytes);
    if (block > 0) add(Kind::output, block - 1, boundary(block - 1));
  }
  if (backward) {
    add(Kind::output, block, boundary(block));
    add(Kind::saved, block, saved_bytes(own, program_));
  }
  if ((backward || run.pass == Pass::weight) && own_.ends_chunk(block))
    add(Kind::output_gradient, block, boundary(block));
  return list;
}

/// But for gradients of.parameters.
std::vector<Follower::Named> Follower::written_by(const work::Run& run) const {
  using work::Pass;
  const int block = run.block;
  const BlockCost& own = cost_.blocks[to_index(block)];
  std::vector<Named> list;
  if (run.pass == Pass::forward || run.pass == Pass::again) {
    list.push_back({.value = of_block(Kind::output, block), .elements = boundary(block)});
    list.push_back({.value = of_block(Kind::saved, block),
                    .elements = saved_bytes(own, program_),
                    .optional = run.pass == Pass::forward});
    return list;
  }
  if (run.pass == Pass::input)
    list.push_back({.value = of_block(Kind::held, block), .elements = own.held_bytes});
  if (run.pass != Pass::weight && block > own_.first_trained() && own_.ends_chunk(block - 1))
    list.push_back(
        {.value = of_block(Kind::output_gradient, block - 1), .elements = boundary(block - 1)});
  return list;
}

void Follower::name_once(std::vector<Named>& wanted, const View& view, const Value& value) {
  const auto found = std::ranges::find(wanted, value, &Named::value);
  if (found == wanted.end() || found->seen) {
    const bool old =
        value.kind == Kind::parameters && (value.version != 0 || value.share || value.begin != 0);
    return problem("has no use for {}{}", text(value),
                   value.version == kBehind ? " from before the last update"
                   : old                    ? " that are of another step, or not whole"
                                            : "");
  }
  found->seen = true;
  if (view.elements != found->elements)
    problem("has {} elements for {} of {}", view.elements, text(value), found->elements);
}

void Follower::all_named(const std::vector<Named>& wanted) {
  for (const Named& one : wanted) {
    if (!one.seen && !one.optional) problem("does without {}", text(one.value));
  }
}

void Follower::add_gradient(const work::Run& run, const View& view, int group) {
  if (view.begin != 0 || view.share || view.elements != layout_.whole_gradient_elements(group))
    return problem("adds to a part of {}", name(view.buffer));
  const std::vector<Part> parts = read(view);
  if (parts.empty()) return;
  Value value = parts.front().value;
  const std::vector<int>& readers = readers_[to_index(group)];
  const std::size_t size = 2 * readers.size() * to_index(program_.micro_batches);
  const int of = value.micro_batch;
  if (value.added.empty()) {
    value.added.assign(size, 0);
    if (of != action().micro_batch) problem("adds to a gradient of micro-batch {}", of);
  }
  value.micro_batch = action().micro_batch;  // the last one in it
  // What was summed over ranks takes no more.
  if (value.owner != group || value.added.size() != size || value.summed != 0 || value.share ||
      value.kind != Kind::gradient || parts.front().elements < padded(group))
    return problem("adds a gradient of {} to {}", cost_.groups[to_index(group)].name, text(value));
  const auto reader =
      to_index(static_cast<int>(std::ranges::find(readers, run.block) - readers.begin()));
  const std::size_t own =
      2 * (reader * to_index(program_.micro_batches) + to_index(action().micro_batch));
  if (run.pass != work::Pass::weight) ++value.added[own];
  if (run.pass != work::Pass::input) ++value.added[own + 1];
  write({.buffer = view.buffer, .elements = padded(group)}, std::move(value), /*in_place=*/true);
}

void Follower::hand_on(const work::Run& run) {
  auto& handed = handed_[static_cast<std::size_t>(action().lane)];
  const std::pair own = {run.block, action().micro_batch};
  const bool last = run.block + 1 == static_cast<int>(cost_.blocks.size());
  if (!last && !own_.ends_chunk(run.block) && handed != own)
    problem("comes before the gradient of its output");
  const bool within = run.block > own_.first_trained() && !own_.ends_chunk(run.block - 1);
  handed = within ? std::pair{run.block - 1, action().micro_batch} : std::pair{kNone, kNone};
}

void Follower::follow(const work::Run& run) {
  using work::Pass;
  if (run.block != action().block || !own_.local(run.block) || run.pass != pass_of(action().kind))
    return problem("runs block {} otherwise", run.block);
  if (run.inside != block_collectives(run.pass, run.block, program_.kind, layout_, cost_))
    problem("performs other collectives than the block states");
  const std::pair own = {run.block, action().micro_batch};
  if (run.pass != Pass::forward) {
    if (!forwards_.contains(own)) problem("comes before forward");
  } else if (!forwards_.insert(own).second) {
    problem("comes twice");
  }
  const bool backward = run.pass == Pass::backward || run.pass == Pass::input;
  if (backward) hand_on(run);
  std::vector<Named> reads = read_by(run), writes = written_by(run);
  bool reads_state = false, writes_state = false;
  const auto names_state = [&](const View& view, bool& named) {
    const View whole = {.buffer = view.buffer, .elements = buffer(view.buffer).elements};
    if (std::exchange(named, true) || buffer(view.buffer).owner != run.block || view != whole)
      problem("names the block's state twice, in part or of another block");
  };
  for (const View& view : run.reads) {
    if (role_row(buffer(view.buffer).role).holds == Kind::block_state) {
      names_state(view, reads_state);
    } else if (const auto value = read_one(view)) {
      name_once(reads, view, *value);
    }
  }
  all_named(reads);
  std::vector<int> trained;
  for (const int g : cost_.blocks[to_index(run.block)].groups) {
    if (layout_.groups[to_index(g)].trainable) trained.push_back(g);
  }
  if (!backward && run.pass != Pass::weight) trained.clear();
  std::size_t gradients = 0;
  for (const View& view : run.writes) {
    const BufferRole role = buffer(view.buffer).role;
    const Kind kind = role_row(role).holds;
    if (kind == Kind::block_state) {
      names_state(view, writes_state);
    } else if (role == BufferRole::gradient || role == BufferRole::whole_gradient) {
      if (gradients == trained.size()) return problem("has no gradient for {}", name(view.buffer));
      add_gradient(run, view, trained[gradients++]);
    } else {
      const Value value = of_block(kind, buffer(view.buffer).owner);
      name_once(writes, view, value);
      write(view, value);
    }
  }
  if (gradients != trained.size()) problem("adds to {} of {} gradients", gradients, trained.size());
  all_named(writes);
  // A forward of a training step changes it, and others read it.
  const bool has_state =
      cost_.blocks[to_index(run.block)].state_bytes > 0 && !backward && run.pass != Pass::weight;
  const bool changes = training() && run.pass == Pass::forward;
  if (writes_state != (has_state && changes) || reads_state != (has_state && !changes))
    problem("names the block's state otherwise than it uses it");
}

void Follower::follow(const work::Norm& norm) {
  if (decided_) problem("comes twice");
  decided_ = true;
  std::int64_t sums = kNumStepSums;
  for (const BlockCost& block : cost_.blocks) sums += block.step_sums;
  if (norm.sums != sums || norm.ranks != layout_.degree(kAllAxes))
    problem("sums {} numbers of {} ranks instead of {} of {}", norm.sums, norm.ranks, sums,
            layout_.degree(kAllAxes));
  for (const work::Square& square : norm.squares) {
    const auto value = read_one(square.gradient);
    if (!value) continue;
    const int group = value->owner;
    if (!normed_.insert(group).second) problem("reads a group twice");
    if (!complete(*value, group)) continue;
    // Each element counts once over all ranks.
    const int parts = value->share ? layout_.extent(value->share->axis).ranks : 1;
    const std::int64_t elements = value->share ? value->share->stride : padded(group);
    if (value->begin != 0 || square.gradient.elements != elements ||
        elements * parts != padded(group))
      problem("leaves elements of {}", cost_.groups[to_index(group)].name);
    if (square.holders * parts != equal_ranks(group))
      problem("counts {} ranks with the same part of {} instead of {}", square.holders,
              cost_.groups[to_index(group)].name, equal_ranks(group) / parts);
  }
  for (int g = 0; g < num_groups(); ++g) {
    if (layout_.groups[to_index(g)].trainable && own_.holds(g) && !normed_.contains(g))
      problem("leaves out {}", cost_.groups[to_index(g)].name);
  }
}

void Follower::follow(const work::Update& update) {
  if (!decided_) problem("comes before norm");
  if (update.group != action().group) return problem("changes another group");
  const auto gradient = read_one(update.gradient);
  if (!gradient || !complete(*gradient, update.group)) return;
  if (!normed_.contains(update.group)) problem("changes what norm has not read");
  belongs(*gradient);
  if (update.inside != update_collectives(update.group, layout_))
    problem("performs other collectives than its matrices ask for");
  const std::int64_t values = values_of(update.gradient, program_.buffers);
  // By the device or by the CPU, which has all of it.
  const bool by_device = buffer(update.gradient.buffer).place == Place::device;
  const auto at_hand = [&](const View& view) {
    if ((buffer(view.buffer).place == Place::device) != by_device)
      problem("uses {} in place", name(view.buffer));
  };
  at_hand(update.parameters);
  const auto change = [&](const View& view, Value value) {
    at_hand(view);
    if (value.unit != 0 && (value.begin != gradient->begin || value.share != gradient->share ||
                            values_of(view, program_.buffers) != values))
      return problem("changes other elements of {} than its gradient is of", name(view.buffer));
    if (value.owner != update.group) return problem("changes another group");
    if (value.version != 0) return problem("changes {} a second time", name(view.buffer));
    value.version = 1;
    write(view, std::move(value), /*in_place=*/true);
  };
  int next = layout_.widths.master > 0 ? kMaster : 0;  // then the moments in their order
  for (const View& view : update.states) {
    const auto value = read_one(view);
    if (!value) return;
    if (value->kind != Kind::state) return problem("changes {}", kind_name(value->kind));
    if (value->state != kAverage && value->state != next++)
      return problem("takes states in another order");
    change(view, *value);
  }
  if (layout_.widths.parameters_are_states()) {
    const auto value = read_one(update.parameters);
    if (!value) return;
    if (value->kind != Kind::parameters) return problem("changes {}", kind_name(value->kind));
    return change(update.parameters, *value);
  }
  // Written anew from the master weights.
  const Buffer& to = buffer(update.parameters.buffer);
  const Value value{.kind = Kind::parameters,
                    .owner = update.group,
                    .version = 1,
                    .begin = gradient->begin,
                    .share = gradient->share,
                    .unit = update.parameters.width > 0 ? update.parameters.width / to.width : 1};
  if (values_of(update.parameters, program_.buffers) != values)
    return problem("writes parameters of other elements than its gradient is of");
  write(update.parameters, value);
}

}  // namespace dstrain::meaning
