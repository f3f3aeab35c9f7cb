#include "engine/program/follower.h"

#include <algorithm>
#include <type_traits>

#include "engine/program/meaning.h"

namespace dstrain {
namespace meaning {
namespace {

/// What buffers of the role are for.
bool fits(const Buffer& buffer, const Value& value) {
  using enum BufferRole;
  const bool own = buffer.owner < 0 || buffer.owner == value.owner || value.owner < 0;
  const auto is = [&](Kind kind, bool coded = false) {
    return value.kind == kind && value.coded == coded && own;
  };
  switch (buffer.role) {
    case parameters:
    case gathered:
    case second_shard:
      return is(Kind::parameters);
    case gradient:
    case whole_gradient:
    case shard_sum:
    case wire:
      return is(Kind::gradient);
    case master:
    case moments:
    case average:
      return is(Kind::state);
    case state_slot:
      return is(Kind::state) || is(Kind::parameters);
    case gradient_slot:
      return is(Kind::gradient) || is(Kind::parameters);
    case coded_parameters:
      return is(Kind::parameters, true);
    case coded_gradient:
      return is(Kind::gradient, true);
    case batch:
      return is(Kind::batch);
    case output:
    case host_input:
    case fetched_input:
      return is(Kind::output);
    case saved:
      return is(Kind::saved);
    case held:
      return is(Kind::held);
    case output_gradient:
      return is(Kind::output_gradient);
    case block_state:
      return false;
  }
  return false;
}

}  // namespace

CommAxis Follower::plain(CommAxis axis) const {
  const bool all =
      (axis == CommAxis::shard_inner && layout_.second_degree == layout_.shard_degree) ||
      (axis == CommAxis::shard_outer && layout_.second_degree == 1);
  return all ? CommAxis::shard : axis;
}

void Follower::rest(int id, Kind kind, Partition partition, bool behind) {
  const Buffer& own = buffer(id);
  const CommAxis cut = layout_.groups[to_index(own.owner)].cut;
  const std::int64_t stride = padded(own.owner) / layout_.shards(own.owner);
  Value value{.kind = kind, .owner = own.owner};
  if (own.role == BufferRole::moments && layout_.groups[to_index(own.owner)].matrix_elements > 0)
    value.unit = 0;
  Content& content = contents_[to_index(id)];
  const View whole = {.buffer = id, .elements = own.elements};
  if (partition == Partition::sharded) {
    value.share = Share{cut, stride};
    (void)content.write(whole, value, 1);
  } else if (behind) {
    Value old = value;
    old.version = kBehind;
    (void)content.write(whole, old, 1);
    value.share = Share{cut, stride};
    const View part = {.buffer = id, .elements = stride, .share = value.share};
    (void)content.write(part, value, ranks(part));
  } else {
    (void)content.write(whole, value, 1);
  }
}

void Follower::begin() {
  handed_.fill({kNone, kNone});
  for (int b = 0; b < static_cast<int>(cost_.blocks.size()); ++b) {
    if (!own_.local(b)) continue;
    for (const int g : cost_.blocks[to_index(b)].groups) readers_[to_index(g)].push_back(b);
  }
  for (int id = 0; id < static_cast<int>(program_.buffers.size()); ++id) {
    const Buffer& own = buffer(id);
    if (!at_rest(own.role) || own.role == BufferRole::gradient ||
        own.role == BufferRole::block_state || own.owner < 0)
      continue;
    const GroupLayout& kind = layout_.groups[to_index(own.owner)];
    if (own.role == BufferRole::parameters) {
      // What a rank does not update is as before the last update, until it is gathered.
      const bool behind =
          program_.kind != ProgramKind::evaluation && kind.trainable && layout_.gathered(own.owner);
      rest(id, Kind::parameters, kind.parameters, behind);
    } else {
      rest(id, Kind::state, kind.states, false);
    }
  }
}

/// Each state is one update further, and what is not at rest is free.
void Follower::end() {
  all_sent();
  const auto wrong = [&](int id, const char* what) {
    const int owner = buffer(id).owner;
    problems_.push_back(fmt::format("the {} of {} {}", role_name(buffer(id).role),
                                    cost_.groups[to_index(owner)].name, what));
  };
  for (int id = 0; id < static_cast<int>(program_.buffers.size()); ++id) {
    const Buffer& own = buffer(id);
    Content& content = contents_[to_index(id)];
    if (!at_rest(own.role)) {
      if (!content.empty()) problems_.push_back(fmt::format("{} is not freed", name(id)));
      continue;
    }
    if (own.role == BufferRole::gradient || own.role == BufferRole::block_state || own.owner < 0)
      continue;
    if (own.width == 0) continue;
    const GroupLayout& kind = layout_.groups[to_index(own.owner)];
    const bool updated = training() && kind.trainable;
    View view = {.buffer = id, .elements = own.elements};
    const bool parameters = own.role == BufferRole::parameters;
    const bool apart = updated && parameters && layout_.gathered(own.owner) &&
                       kind.parameters == Partition::replicated;
    if (apart) {
      view.elements = padded(own.owner) / layout_.shards(own.owner);
      view.share = Share{kind.cut, view.elements};
    }
    const auto parts = content.read(view, ranks(view));
    if (!parts || parts->size() != 1) {
      wrong(id, parts ? "is not updated alike in all its parts" : "is not there at the end");
      continue;
    }
    const Value& value = parts->front().value;
    const bool whole = program_.kind == ProgramKind::gathering;
    const int wanted = updated ? 1 : 0;
    if (whole && value.version == kBehind) {
      wrong(id, "is not whole at the end");
    } else if (value.version != wanted) {
      wrong(id, updated ? "is not updated" : "is updated");
    }
  }
}

void Follower::all_sent() {
  for (int b = 0; program_.kind != ProgramKind::gathering && b < num_blocks(); ++b) {
    if (!own_.local(b)) continue;
    for (int m = 0; m < program_.micro_batches; ++m) {
      if (b + 1 < num_blocks() && !own_.local(b + 1) && !sent_outputs_.contains({b, m}))
        problems_.push_back(fmt::format("{} is not sent", text({Kind::output, b, m})));
      if (training() && b > own_.first_trained() && !own_.local(b - 1) &&
          !sent_gradients_.contains({b - 1, m}))
        problems_.push_back(fmt::format("{} is not sent", text({Kind::output_gradient, b - 1, m})));
    }
  }
}

bool Follower::inside(const View& view) {
  const std::int64_t last =
      view.begin + view.elements + (view.share ? (ranks(view) - 1) * view.share->stride : 0);
  const std::int64_t all = buffer(view.buffer).elements;
  if (view.begin >= 0 && (view.elements > 0 || all == 0) &&
      last <= std::max<std::int64_t>(all, 1) && (!view.share || ranks(view) > 1))
    return true;
  problem("a view of {} elements from {} on does not lie in {}", view.elements, view.begin,
          name(view.buffer));
  return false;
}

std::vector<Part> Follower::read(const View& view) {
  if (!inside(view)) return {};
  auto parts = contents_[to_index(view.buffer)].read(plain(view), ranks(view));
  if (parts) return std::move(*parts);
  problem("reads {}, which does not hold that", name(view.buffer));
  return {};
}

std::optional<Value> Follower::read_one(const View& view) {
  std::vector<Part> parts = read(view);
  if (parts.empty()) return std::nullopt;
  if (parts.size() > 1) {
    problem("reads parts of several kinds or ages in {}", name(view.buffer));
    return std::nullopt;
  }
  return std::move(parts.front().value);
}

bool Follower::in_place_at_rest(const View& view, const Value& value) const {
  const Buffer& own = buffer(view.buffer);
  if (!at_rest(own.role) || value.owner < 0 || value.unit == 0) return true;
  const GroupLayout& kind = layout_.groups[to_index(own.owner)];
  const Partition partition = own.role == BufferRole::parameters ? kind.parameters
                              : own.role == BufferRole::gradient ? kind.gradients
                                                                 : kind.states;
  const std::optional<Share> share =
      partition == Partition::sharded
          ? std::optional(Share{kind.cut, padded(own.owner) / layout_.shards(own.owner)})
          : view.share;
  return value.begin == view.begin && value.share == share &&
         !(partition == Partition::sharded && view.share);
}

void Follower::write(const View& to, Value value, bool in_place) {
  const View view = plain(to);
  if (!inside(view)) return;
  const Buffer& own = buffer(view.buffer);
  Content& content = contents_[to_index(view.buffer)];
  if (!fits(own, value)) {
    problem("writes {} into {}", kind_name(value.kind), name(view.buffer));
    return;
  }
  if (!in_place_at_rest(view, value)) {
    problem("writes elements of {} that stand elsewhere", name(view.buffer));
    return;
  }
  const auto before = content.read(view, ranks(view));
  if (before && before->size() == 1 && before->front().value == value) {
    problem("writes {} as it is", name(view.buffer));
    return;
  }
  if (!in_place && !at_rest(own.role) && !inside_one_action(own.role)) {
    // Around the own part, and beside what a slot has of the same group.
    const bool same = !before || std::ranges::all_of(*before, [&](const Part& part) {
      return part.value.kind == value.kind && part.value.owner == value.owner &&
             part.value.version == value.version && part.value.share && !value.share;
    });
    if (!same) {
      problem("writes over {}, which is not freed", name(view.buffer));
      return;
    }
  }
  if (inside_one_action(own.role)) used_scratch_.push_back(view);
  if (!content.write(view, value, ranks(view)))
    problem("writes over shares in {} that lie otherwise", name(view.buffer));
}

void Follower::free(int id) {
  if (at_rest(buffer(id).role)) {
    problem("frees {}", name(id));
  } else if (contents_[to_index(id)].empty()) {
    problem("frees {}, which holds nothing", name(id));
  }
  contents_[to_index(id)].clear();
}

void Follower::run() {
  begin();
  for (now_ = 0; now_ < static_cast<int>(program_.actions.size()); ++now_) {
    for (const Work& work : action().work) {
      std::visit([this](const auto& w) { follow(w); }, work);
      // What follows would say the same in other words.
      if (!problems_.empty()) return;
    }
    for (const int id : action().frees) free(id);
    for (const View& view : used_scratch_) contents_[to_index(view.buffer)].clear();
    used_scratch_.clear();
    if (!problems_.empty()) return;
  }
  end();
}

}  // namespace meaning

void check_meaning(const Program& program, const Layout& layout, const ModelCost& cost,
                   std::vector<std::string>& problems) {
  std::vector<std::string> own;
  meaning::Follower(program, layout, cost, own).run();
  problems.insert(problems.end(), own.begin(), own.end());
}

}  // namespace dstrain
