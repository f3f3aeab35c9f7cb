#include "engine/program/follower.h"

#include <algorithm>
#include <type_traits>

#include "engine/program/meaning.h"

namespace dstrain {
namespace meaning {
namespace {

/// Value::state of what rests in it; all moments of a group are named as the first.
int state_of(const Buffer& buffer) {
  return buffer.role == BufferRole::master    ? kMaster
         : buffer.role == BufferRole::average ? kAverage
                                              : std::max(buffer.moment, 0);
}

/// What buffers of the role are for.
bool fits(const Buffer& buffer, const Value& value) {
  const RoleRow& role = role_row(buffer.role);
  const bool own = buffer.owner < 0 || buffer.owner == value.owner || value.owner < 0;
  const bool rests = role.holds == Kind::state && at_rest(buffer.role);
  return (value.kind == role.holds || value.kind == role.also) && value.coded == role.coded &&
         own && (!rests || value.state == state_of(buffer));
}

/// Holds what a program carries from step to step; a gradient and the untrained state of a block
/// are whatever they are.
bool carried(const Buffer& buffer) {
  const Kind kind = role_row(buffer.role).holds;
  return at_rest(buffer.role) && (kind == Kind::parameters || kind == Kind::state) &&
         buffer.owner >= 0;
}

}  // namespace

CommAxis Follower::plain(CommAxis axis) const {
  const bool all =
      (axis == CommAxis::shard_inner && layout_.second_degree == layout_.degrees.shard) ||
      (axis == CommAxis::shard_outer && layout_.second_degree == 1);
  return all ? Axis::shard : axis;
}

Content Follower::resting(int id, int updates, bool behind) const {
  const Buffer& own = buffer(id);
  const GroupLayout& kind = layout_.groups[to_index(own.owner)];
  const bool parameters = role_row(own.role).holds == Kind::parameters;
  Value value{
      .kind = parameters ? Kind::parameters : Kind::state, .owner = own.owner, .version = updates};
  if (!parameters) value.state = state_of(own);
  if (own.role == BufferRole::moments && own.moment < 0) value.unit = 0;
  const View whole = {.buffer = id, .elements = own.elements};
  const Share share{kind.cut, padded(own.owner) / layout_.shards(own.owner)};
  Content content;
  if ((parameters ? kind.parameters : kind.states) == Partition::sharded) {
    value.share = share;
    (void)content.write(whole, value, 1);
  } else if (behind && parameters && kind.trainable && layout_.gathered(own.owner)) {
    Value old = value;
    --old.version;
    (void)content.write(whole, old, 1);
    value.share = share;
    const View part = {.buffer = id, .elements = share.stride, .share = share};
    (void)content.write(part, value, ranks(part));
  } else {
    (void)content.write(whole, value, 1);
  }
  return content;
}

void Follower::begin() {
  handed_.fill({kNone, kNone});
  for (int b = 0; b < num_blocks(); ++b) {
    if (!own_.local(b)) continue;
    for (const int g : cost_.blocks[to_index(b)].groups) readers_[to_index(g)].push_back(b);
  }
  // What a rank does not update is as before the last update, until it is gathered.
  const bool behind = program_.kind != ProgramKind::evaluation;
  for (int id = 0; id < static_cast<int>(program_.buffers.size()); ++id)
    if (carried(buffer(id))) contents_[to_index(id)] = resting(id, 0, behind);
}

/// Each state is one update further, and what is not at rest is free.
void Follower::end() {
  all_run();
  all_sent();
  for (int id = 0; id < static_cast<int>(program_.buffers.size()); ++id) {
    const Buffer& own = buffer(id);
    const Content& content = contents_[to_index(id)];
    if (!at_rest(own.role) && !content.empty())
      problems_.push_back(fmt::format("{} is not freed", name(id)));
    // Emptied when the next step adds to it.
    if (at_rest(own.role) && role_row(own.role).holds == Kind::gradient && !content.empty() &&
        content.first().kind == Kind::gradient && content.first().added.empty())
      problems_.push_back(fmt::format("{} is emptied for nothing", name(id)));
    if (!carried(own)) continue;
    const bool updated = training() && layout_.groups[to_index(own.owner)].trainable;
    if (content == resting(id, int{updated}, training())) continue;
    const bool gathering = program_.kind == ProgramKind::gathering;
    problems_.push_back(fmt::format("the {} of {} {}", role_name(own.role),
                                    cost_.groups[to_index(own.owner)].name,
                                    updated     ? "is not updated once in all its parts"
                                    : gathering ? "is not whole at the end"
                                                : "is changed"));
  }
}

void Follower::all_run() {
  if (program_.kind == ProgramKind::gathering) return;
  for (int b = 0; b < num_blocks(); ++b) {
    for (int m = 0; own_.local(b) && m < program_.micro_batches; ++m)
      if (!forwards_.contains({b, m}))
        problems_.push_back(
            fmt::format("{} does not run on micro-batch {}", cost_.blocks[to_index(b)].name, m));
  }
  if (training() && !decided_) problems_.push_back("norm is missing");
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

void Follower::belongs(const Value& value) {
  const Action& own = action();
  const bool of_group =
      value.kind == Kind::parameters || value.kind == Kind::state || value.kind == Kind::gradient;
  if (value.owner != (of_group ? own.group : own.block)) {
    problem("is not about {}", text(value));
  } else if (value.micro_batch >= 0 && own.micro_batch >= 0 &&
             value.micro_batch != own.micro_batch) {
    problem("is of another micro-batch than {}", text(value));
  } else if (own.part >= 0 && value.begin != layout_.part(own.group, own.part).begin) {
    problem("is not about {} from element {} on", text(value), value.begin);
  }
}

void Follower::on_device(const Work& work) {
  // The places say how these are done.
  if (std::holds_alternative<work::Move>(work) || std::holds_alternative<work::Update>(work))
    return;
  for (const auto& views : {views_read(work), views_written(work)}) {
    for (const View& view : views) {
      if (buffer(view.buffer).place != Place::device)
        problem("uses {} in place", name(view.buffer));
    }
  }
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
  const Kind holds = role_row(own.role).holds;
  const Partition partition = holds == Kind::parameters ? kind.parameters
                              : holds == Kind::gradient ? kind.gradients
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
  if (!in_place && !at_rest(own.role) && role_row(own.role).keeps != Keeps::action) {
    // The own part of what is gathered is there, and a slot holds several kinds of one part.
    const std::vector<Value> covered = content.touching(view, ranks(view));
    const bool own_parts = std::ranges::all_of(covered, [&](const Value& there) {
      return there.kind == value.kind && there.owner == value.owner &&
             there.version == value.version && there.share && !value.share;
    });
    const bool same = content.empty() || (content.first().owner == value.owner &&
                                          content.first().begin == value.begin);
    if (!own_parts || !same) {
      problem("writes over {}, which is not freed", name(view.buffer));
      return;
    }
  }
  if (role_row(own.role).keeps == Keeps::action) used_scratch_.push_back(view);
  if (!content.write(view, value, ranks(view)))
    problem("writes over shares in {} that lie otherwise", name(view.buffer));
}

void Follower::free(int id) {
  const Action& own = action();
  const Content& content = contents_[to_index(id)];
  const auto names = [&](const std::vector<int>& ids) {
    return std::ranges::find(ids, id) != ids.end();
  };
  if (at_rest(buffer(id).role)) {
    problem("frees {}", name(id));
  } else if (content.empty()) {
    problem("frees {}, which holds nothing", name(id));
  } else if (own.work.empty()) {
    belongs(content.first());
  } else if (!names(own.reads) && !names(own.writes)) {
    problem("frees {}, which it does not use", name(id));
  }
  contents_[to_index(id)].clear();
}

void Follower::run() {
  begin();
  for (now_ = 0; now_ < static_cast<int>(program_.actions.size()); ++now_) {
    for (const Work& work : action().work) {
      on_device(work);
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
