
#include <set>

#include "engine/base/error.h"
#include "test/program/models.h"
#include "test/program/soundness.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::Case;
using test::count;
using test::indices;
using test::make_case;
using test::problems;

Program training(const Case& c) { return training_program(c.layout, c.cost, c.options); }

/// Elements of the buffers of one role.
std::vector<std::int64_t> sizes(const Program& program, BufferRole role) {
  std::vector<std::int64_t> elements;
  for (const int id : program.buffers_of(role))
    elements.push_back(program.buffers.at(static_cast<std::size_t>(id)).elements);
  return elements;
}

TEST_CASE("one data rank has neither gather nor reduce, at any stage", "[program]") {
  const int stage = GENERATE(0, 1, 2, 3);
  const Case c = make_case(stage, 1, 1, 4, {.micro_batches = 3, .prefetch = 1});
  const Program program = training(c);
  CHECK(count(program, ActionKind::gather) == 0);
  CHECK(count(program, ActionKind::reduce) == 0);
  CHECK(count(program, ActionKind::norm) == 1);
  CHECK(count(program, ActionKind::update) == 4);
  CHECK(sizes(program, BufferRole::gathered).empty());
  CHECK(sizes(program, BufferRole::whole_gradient).empty());
}

TEST_CASE("whole gradients are reduced once a step, sharded ones once a micro-batch", "[program]") {
  const ProgramOptions options = {.micro_batches = 3, .prefetch = 1};
  CHECK(count(training(make_case(0, 1, 2, 4, options)), ActionKind::reduce) == 4);
  CHECK(count(training(make_case(1, 2, 1, 4, options)), ActionKind::reduce) == 4);
  CHECK(count(training(make_case(2, 2, 1, 4, options)), ActionKind::reduce) == 12);
  CHECK(count(training(make_case(3, 2, 1, 4, options)), ActionKind::reduce) == 12);
}

TEST_CASE("replicas on one node sum parts of gradients and gather them behind the norm",
          "[program]") {
  Case c = make_case(0, 1, 4, 3, {.micro_batches = 2, .prefetch = 1});
  c.layout.peer_ranks = 8;
  const Program program = training(c);
  const std::vector<int> reduces = indices(program, ActionKind::reduce),
                         gathers = indices(program, ActionKind::gather_sum),
                         updates = indices(program, ActionKind::update);
  REQUIRE(reduces.size() == 3);
  REQUIRE(gathers.size() == 3);
  REQUIRE(updates.size() == 3);
  const auto action = [&](int i) { return program.actions[static_cast<std::size_t>(i)]; };
  for (std::size_t i = 0; i < 3; ++i) {
    const int group = 2 - static_cast<int>(i);  // the last block's gradient is complete first
    const Bytes bytes = c.layout.flat[static_cast<std::size_t>(group)].padded() * 4;
    CHECK(action(reduces[i]).comm ==
          std::vector<Comm>{{CommOp::reduce_scatter, Axis::data, 4, bytes}});
    CHECK(action(gathers[i]).comm == std::vector<Comm>{{CommOp::all_gather, Axis::data, 4, bytes}});
    CHECK(action(gathers[i]).lane == Lane::gather);
    CHECK(action(gathers[i]).after == std::vector{reduces[i]});
    CHECK(action(updates[i]).group == group);
    CHECK(action(updates[i]).after == std::vector{gathers[i]});
  }
  const Action norm = action(indices(program, ActionKind::norm).at(0));
  CHECK(norm.after == std::vector{reduces.back()});
  CHECK(c.layout.summed_elements(1) == c.layout.flat[1].padded() / 4);
  CHECK(c.layout.summing_ranks(1) == 1);

  // Not where something of it is elsewhere, of another width, or does not come out even.
  const auto splits = [](Case other, const auto& change) {
    other.layout.peer_ranks = 8;
    change(other.layout);
    return other.layout.splits_sum(0);
  };
  const auto nothing = [](Layout&) {};
  CHECK(splits(c, nothing));
  CHECK_FALSE(splits(c, [](Layout& layout) { layout.peer_ranks = 2; }));
  CHECK_FALSE(splits(c, [](Layout& layout) { layout.widths.reduce_wire = 2; }));
  CHECK_FALSE(splits(c, [](Layout& layout) { layout.groups[0].trainable = false; }));
  CHECK_FALSE(splits(c, [](Layout& layout) { layout.groups[0].stages = {0, 1}; }));
  CHECK(splits(c, [](Layout& layout) { layout.groups[0].update_method = UpdateMethod::host; }));
  CHECK_FALSE(splits(make_case(0, 1, 1, 3, {}), nothing));
  CHECK_FALSE(splits(make_case(1, 4, 1, 3, {}), nothing));
  CHECK_FALSE(splits(make_case(0, 1, 5, 3, {}), nothing));
}

TEST_CASE("ZeRO-1 and 2 gather each group once a step into its resident place", "[program]") {
  const int stage = GENERATE(1, 2);
  const Case c = make_case(
      stage, 2, 2, 4, {.micro_batches = 3, .prefetch = 1, .recompute = test::recomputed(true)});
  const Program program = training(c);
  CHECK(count(program, ActionKind::gather) == 4);
  CHECK(count(program, ActionKind::release) == 0);
  for (const int i : indices(program, ActionKind::gather)) {
    const Action& gather = program.actions[static_cast<std::size_t>(i)];
    CHECK(gather.writes == std::vector{program.find(gather.writes, BufferRole::parameters)});
  }
}

TEST_CASE("ZeRO-3 gathers per use, but keeps a group that is used twice in a row", "[program]") {
  // Per micro-batch every block but the last twice; block 0 stays from one micro-batch to the next.
  const Case c = make_case(3, 2, 1, 6, {.micro_batches = 3, .prefetch = 1});
  const Program program = training(c);
  CHECK(count(program, ActionKind::gather) == 3 * (2 * 6 - 1) - 2);
  CHECK(count(program, ActionKind::release) == count(program, ActionKind::gather));
  CHECK(sizes(program, BufferRole::gathered).size() == 3);
  CHECK(sizes(program, BufferRole::whole_gradient).size() == 2);
}

TEST_CASE("a longer prefetch keeps what it would gather again", "[program]") {
  const auto gathers = [](int prefetch) {
    return count(training(make_case(3, 2, 1, 6, {.micro_batches = 1, .prefetch = prefetch})),
                 ActionKind::gather);
  };
  CHECK(gathers(0) == 11);
  CHECK(gathers(1) == 11);
  CHECK(gathers(2) == 10);  // the block before the last stays, too
  CHECK(gathers(10) == 6);  // all stay
}

TEST_CASE("slots hold their groups, and there are no more of them than groups", "[program]") {
  const Case c = make_case(3, 2, 1, 2, {.micro_batches = 1, .prefetch = 5});
  const Program program = training(c);
  const std::int64_t largest = c.layout.flat[1].padded();
  CHECK(sizes(program, BufferRole::gathered) == std::vector{largest, c.layout.flat[0].padded()});
  CHECK(sizes(program, BufferRole::whole_gradient) == std::vector{largest, largest});
  const Program one = training(make_case(3, 2, 1, 1, c.options));
  CHECK(sizes(one, BufferRole::gathered).size() == 1);
  CHECK(sizes(one, BufferRole::whole_gradient).size() == 1);
}

/// Four blocks; the head reads the stem's group too, as a tied language model does.
Case tied_case(int stage, const ProgramOptions& options) {
  Case c = make_case(stage, 2, 1, 4, options);
  c.cost.blocks[3].groups = {0, 3};
  return c;
}

TEST_CASE("a group of several blocks is gathered once and reduced after the last of them",
          "[program]") {
  const Case c = tied_case(3, {.micro_batches = 2, .prefetch = 0});
  const Program program = training(c);
  CHECK(problems(program, c) == "");
  CHECK(sizes(program, BufferRole::gathered).back() == c.layout.flat[0].padded());
  CHECK(sizes(program, BufferRole::whole_gradient).back() == c.layout.flat[0].padded());
  int gathers = 0, reduces = 0;
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    if (action.group != 0) continue;
    gathers += action.kind == ActionKind::gather ? 1 : 0;
    if (action.kind != ActionKind::reduce) continue;
    ++reduces;
    REQUIRE(action.after.size() == 1);
    CHECK(program.actions[static_cast<std::size_t>(action.after[0])].block == 0);
  }
  CHECK(gathers == 1);
  CHECK(reduces == 2);
}

TEST_CASE("a tied model is sound under every strategy", "[program]") {
  const int stage = GENERATE(0, 1, 2, 3), prefetch = GENERATE(0, 1, 4);
  const bool recompute = GENERATE(false, true);
  const Case c = tied_case(
      stage, {.micro_batches = 3, .prefetch = prefetch, .recompute = test::recomputed(recompute)});
  CHECK(problems(training(c), c) == "");
  CHECK(problems(evaluation_program(c.layout, c.cost, c.options), c) == "");
}

TEST_CASE(
    "frozen groups have neither gradient nor update, and backward ends at the first trained block",
    "[program]") {
  const int stage = GENERATE(0, 1, 2, 3);
  Case c = make_case(stage, 2, 1, 4, {.micro_batches = 2, .prefetch = 1});
  // Blocks 1 and 2 have adapters; the rest is frozen.
  for (GroupCost& group : c.cost.groups) group.trainable = false;
  c.cost.groups.push_back({"adapter1", {64}});
  c.cost.groups.push_back({"adapter2", {64}});
  c.cost.blocks[1].groups = {1, 4};
  c.cost.blocks[2].groups = {2, 5};
  c.layout = zero_layout(stage, Mesh(2, {.shard = 2}), c.cost, {});
  const Program program = training(c);
  CHECK(problems(program, c) == "");
  CHECK(count(program, ActionKind::update) == 2);
  CHECK(count(program, ActionKind::backward) == 2 * 3);
  for (const Action& action : program.actions) {
    if (action.kind == ActionKind::gather && stage < 3) CHECK(action.group >= 4);
    if (action.kind == ActionKind::reduce || action.kind == ActionKind::clear)
      CHECK(action.group >= 4);
    if (action.kind == ActionKind::backward) CHECK(action.block >= 1);
  }
}

TEST_CASE("gathers are listed as far ahead as the prefetch says", "[program]") {
  const int prefetch = GENERATE(0, 1, 2, 3);
  const Case c = make_case(3, 2, 1, 6, {.micro_batches = 1, .prefetch = prefetch});
  const Program program = evaluation_program(c.layout, c.cost, c.options);
  for (const int i : indices(program, ActionKind::forward)) {
    const int block = program.actions[static_cast<std::size_t>(i)].block;
    int gathered = 0;
    for (const int g : indices(program, ActionKind::gather)) gathered += g < i ? 1 : 0;
    CAPTURE(prefetch, block);
    // Six sizes in six slots are less than five of the largest.
    CHECK(gathered == (prefetch == 3 ? 6 : std::min(6, block + prefetch + 1)));
  }
}

TEST_CASE("every block but the head is recomputed, right before its backward", "[program]") {
  const Case c = make_case(
      1, 2, 1, 4, {.micro_batches = 2, .prefetch = 1, .recompute = test::recomputed(true)});
  const Program program = training(c);
  const auto list = indices(program, ActionKind::recompute);
  CHECK(list.size() == 2 * 3);
  for (const int i : list) {
    const Action& again = program.actions[static_cast<std::size_t>(i)];
    std::size_t after = static_cast<std::size_t>(i) + 1;
    if (program.actions[after].kind == ActionKind::clear) ++after;
    const Action& next = program.actions[after];
    CHECK(next.kind == ActionKind::backward);
    CHECK(next.block == again.block);
    CHECK(again.block < 3);
  }
}

TEST_CASE("loads come one micro-batch ahead into two buffers", "[program]") {
  const Case c = make_case(0, 1, 1, 2, {.micro_batches = 4, .prefetch = 1});
  const Program program = training(c);
  const auto loads = indices(program, ActionKind::load);
  REQUIRE(loads.size() == 4);
  CHECK(loads[0] == 0);
  CHECK(loads[1] == 1);
  for (std::size_t m = 2; m < 4; ++m) {
    const Action& load = program.actions[static_cast<std::size_t>(loads[m])];
    CHECK(load.writes == std::vector{program.buffers_of(BufferRole::batch).at(m % 2)});
    REQUIRE(load.after.size() == 1);
    const Action& reader = program.actions[static_cast<std::size_t>(load.after[0])];
    CHECK(reader.kind == ActionKind::backward);
    CHECK(reader.block == 0);
    CHECK(reader.micro_batch == static_cast<int>(m) - 2);
  }
}

TEST_CASE("evaluation is one micro-batch forward from the parameters at rest", "[program]") {
  const int stage = GENERATE(0, 1, 2, 3);
  const Case c = make_case(
      stage, 2, 1, 5, {.micro_batches = 3, .prefetch = 1, .recompute = test::recomputed(true)});
  const Program program = evaluation_program(c.layout, c.cost, c.options);
  CHECK(program.micro_batches == 1);
  CHECK(count(program, ActionKind::load) == 1);
  CHECK(count(program, ActionKind::forward) == 5);
  CHECK(count(program, ActionKind::gather) == (stage == 3 ? 5U : 0U));
  CHECK(count(program, ActionKind::release) == (stage == 3 ? 5U : 0U));
  CHECK(program.actions.size() == (stage == 3 ? 16U : 6U));
}

TEST_CASE("parameters that rest whole are gathered before an evaluation", "[program]") {
  const int stage = GENERATE(0, 1, 2, 3);
  const Case c = make_case(stage, 2, 1, 5, {.micro_batches = 3, .prefetch = 1});
  const Program program = gathering_program(c.layout, c.cost);
  CHECK(count(program, ActionKind::gather) == (stage == 1 || stage == 2 ? 5U : 0U));
  CHECK(program.actions.size() == count(program, ActionKind::gather));
}

TEST_CASE("each pair of an axis and a lane is one channel", "[program]") {
  using Channels = std::vector<CommChannel>;
  const CommChannel gather = {Axis::shard, Lane::gather};
  const CommChannel reduce = {Axis::shard, Lane::reduce};
  const CommChannel replicas = {Axis::data, Lane::reduce};
  const CommChannel norm = {CommAxis::world, Lane::compute};
  const auto of = [](int stage, int shard, int copies) {
    return channels(training(make_case(stage, shard, copies, 3, {})));
  };
  CHECK(of(0, 1, 1) == Channels{});
  CHECK(of(0, 1, 2) == Channels{replicas, norm});
  CHECK(of(3, 2, 1) == Channels{gather, reduce, norm});
  CHECK(of(1, 2, 2) == Channels{gather, reduce, replicas, norm});
}

TEST_CASE("a stage without shards is plain data parallelism", "[layout]") {
  const ModelCost cost = test::small_model_cost(2);
  const Mesh mesh(4, {.data = 4});
  for (const int stage : {1, 2, 3}) {
    const Layout layout = zero_layout(stage, mesh, cost, {});
    CHECK(layout.groups == zero_layout(0, mesh, cost, {}).groups);
    CHECK(layout.degrees.data == 4);
    CHECK(layout.degrees.shard == 1);
  }
}

TEST_CASE("stage 0 counts the ranks of both data axes as replicas", "[layout]") {
  const Layout layout =
      zero_layout(0, Mesh(8, {.data = 2, .shard = 4}), test::small_model_cost(2), {});
  CHECK(layout.degrees.shard == 1);
  CHECK(layout.degrees.data == 8);
}

TEST_CASE("the extent of an axis is that of the mesh's groups along it", "[layout]") {
  const int shard = GENERATE(1, 2, 3, 4), expert = GENERATE(1, 2), sequence = GENERATE(1, 2),
            tensor = GENERATE(1, 4);
  const Mesh mesh(4 * shard * expert * sequence * tensor, {.pipeline = 2,
                                                           .data = 2,
                                                           .shard = shard,
                                                           .expert = expert,
                                                           .sequence = sequence,
                                                           .tensor = tensor});
  Layout layout = zero_layout(1, mesh, test::small_model_cost(2), {});
  layout.second_degree = shard == 4 ? 2 : shard;
  std::vector<CommAxis> names = {CommAxis::batch,
                                 CommAxis::world,
                                 CommAxis::shard_inner,
                                 CommAxis::shard_outer,
                                 CommAxis::ends,
                                 CommAxis({Axis::shard, Axis::sequence}),
                                 CommAxis({Axis::data, Axis::tensor})};
  names.insert(names.end(), kAxes.begin(), kAxes.end());
  for (const CommAxis name : names) {
    CAPTURE(mesh.describe(), comm_axis_name(name));
    const std::vector<int> group = layout.ranks(name, mesh, 0);
    CHECK(layout.extent(name).ranks == static_cast<int>(group.size()));
    if (group.size() > 1) CHECK(layout.extent(name).stride == group[1] - group[0]);
  }
}

TEST_CASE("a group is divided among the ranks that hold the same of it, by its cut", "[layout]") {
  ModelCost cost = test::small_model_cost(3);
  cost.groups[1].cut = Cut::tensor;
  cost.groups[2].cut = Cut::expert;
  const Mesh mesh(32, {.data = 2, .shard = 2, .expert = 2, .sequence = 2, .tensor = 2});
  const auto of = [&](int stage) { return zero_layout(stage, mesh, cost, {}); };
  const Axes whole = {Axis::shard, Axis::expert, Axis::sequence, Axis::tensor},
             by_tensor = {Axis::shard, Axis::expert, Axis::sequence},
             by_expert = {Axis::shard, Axis::sequence};
  for (const int stage : {1, 2, 3}) {
    const Layout layout = of(stage);
    CHECK(layout.groups[0].cut == whole);
    CHECK(layout.groups[1].cut == by_tensor);
    CHECK(layout.groups[2].cut == by_expert);
    for (int g = 0; g < 3; ++g) {
      CHECK(layout.groups[static_cast<std::size_t>(g)].copies == Axes(Axis::data));
      CHECK(layout.shards(g) == 16 >> g);
      CHECK(layout.holders(g) == 2);
      CHECK(layout.flat[static_cast<std::size_t>(g)].shard_size() * layout.shards(g) ==
            layout.flat[static_cast<std::size_t>(g)].padded());
    }
  }
  const Layout plain = of(0);
  CHECK(plain.groups[1].cut.empty());
  CHECK(plain.holders(0) == 32);
  CHECK(plain.holders(1) == 16);
  CHECK(plain.holders(2) == 8);
  CHECK(plain.groups[0].states == Partition::replicated);
  // One tensor rank has all of what is cut along that axis, and half of the rest.
  const Layout alone = zero_layout(3, Mesh(2, {.tensor = 2}), cost, {});
  CHECK(alone.groups[0].parameters == Partition::sharded);
  CHECK(alone.groups[1].parameters == Partition::replicated);
}

TEST_CASE("codes are refused where other axes than the data axes are used", "[layout]") {
  const ModelCost cost = test::small_model_cost(2);
  Layout layout = zero_layout(3, Mesh(4, {.shard = 2, .tensor = 2}), cost, {});
  CHECK_NOTHROW(set_wires(layout, cost, {}));
  CHECK_THROWS_AS(set_wires(layout, cost, {.gather = CodeFormat::int8}), Error);
  CHECK_THROWS_AS(set_wires(layout, cost, {.second_degree = 2}), Error);
}

TEST_CASE("each ZeRO stage shards one kind of state more", "[layout]") {
  const ModelCost cost = test::small_model_cost(1);
  const Mesh mesh(2, {.shard = 2});
  const auto sharded = [&](int stage) {
    const GroupLayout g = zero_layout(stage, mesh, cost, {}).groups.at(0);
    return std::vector<bool>{g.states == Partition::sharded, g.gradients == Partition::sharded,
                             g.parameters == Partition::sharded};
  };
  CHECK(sharded(0) == std::vector<bool>{false, false, false});
  CHECK(sharded(1) == std::vector<bool>{true, false, false});
  CHECK(sharded(2) == std::vector<bool>{true, true, false});
  CHECK(sharded(3) == std::vector<bool>{true, true, true});
  CHECK_THROWS_AS(zero_layout(4, mesh, cost, {}), Error);
  CHECK_THROWS_AS(zero_layout(-1, mesh, cost, {}), Error);
}

TEST_CASE("a block without a group, a group without a block and a frozen model are refused",
          "[program]") {
  Case c = make_case(0, 1, 1, 2, {});
  c.cost.blocks[1].groups = {};
  CHECK_THROWS_AS(training(c), Error);
  c.cost.blocks[1].groups = {0};
  CHECK_THROWS_AS(training(c), Error);
  c.cost.blocks[1].groups = {1};
  c.cost.groups[0].trainable = c.cost.groups[1].trainable = false;
  CHECK_THROWS_AS(training(c), Error);
  c = make_case(0, 1, 1, 2, {});
  c.cost.blocks[1].groups = {0, 1};
  CHECK(training(c).actions.size() > 0);
  c.options.micro_batches = 0;
  CHECK_THROWS_AS(training(c), Error);
}

TEST_CASE("the hash is equal for equal programs and differs for each change",
          "[program][property]") {
  const ProgramOptions options = {.micro_batches = 2, .prefetch = 1};
  const Case c = make_case(3, 2, 1, 3, options);
  const Program program = training(c);
  CHECK(hash(program, c.layout) == hash(training(c), c.layout));

  std::set<std::uint64_t> seen = {hash(program, c.layout)};
  std::size_t variants = 1;
  const auto differs = [&](const Program& p, const Layout& l) {
    ++variants;
    seen.insert(hash(p, l));
  };
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    for (int field = 0; field < 10; ++field) {
      Program copy = program;
      Action& a = copy.actions[i];
      if (field == 0) a.kind = a.kind == ActionKind::norm ? ActionKind::update : ActionKind::norm;
      if (field == 1) a.block += 100;
      if (field == 2) a.group += 100;
      if (field == 3) a.micro_batch += 100;
      if (field == 4) a.reads.push_back(100);
      if (field == 5) a.after.push_back(0);
      if (field == 6) a.comm.push_back({.bytes = 1});
      if (field == 7) a.writes.push_back(100);
      if (field == 8) a.frees.push_back(100);
      if (field == 9) a.workspace += 1;
      differs(copy, c.layout);
    }
  }
  for (std::size_t id = 0; id < program.buffers.size(); ++id) {
    for (int field = 0; field < 5; ++field) {
      Program copy = program;
      Buffer& b = copy.buffers[id];
      if (field == 0) b.role = BufferRole::wire;
      if (field == 1) b.owner += 100;
      if (field == 2) b.elements += 1;
      if (field == 3) b.width += 1;
      if (field == 4) b.place = Place::pinned;
      differs(copy, c.layout);
    }
  }
  for (int stage : {0, 1, 2}) differs(program, make_case(stage, 2, 1, 3, options).layout);
  differs(program, make_case(3, 4, 1, 3, options).layout);
  differs(program, make_case(3, 2, 2, 3, options).layout);
  Layout narrow = c.layout;
  narrow.widths.reduce_wire = 2;
  differs(program, narrow);
  CHECK(seen.size() == variants);
}

TEST_CASE("actions are described by name", "[program]") {
  const Case c = make_case(3, 2, 1, 3, {.micro_batches = 1, .prefetch = 1});
  CHECK(describe({.kind = ActionKind::backward, .block = 1, .micro_batch = 2}, c.cost) ==
        "backward(block1), micro-batch 2");
  CHECK(describe({.kind = ActionKind::gather, .group = 2}, c.cost) == "gather(block2)");
  CHECK(describe({.kind = ActionKind::reduce, .group = 0, .micro_batch = 1}, c.cost) ==
        "reduce(block0), micro-batch 1");
  CHECK(describe({.kind = ActionKind::load, .micro_batch = 0}, c.cost) == "load, micro-batch 0");
  CHECK(describe({.kind = ActionKind::norm}, c.cost) == "norm");
  CHECK(describe({.kind = ActionKind::update, .group = 99}, c.cost) == "update(99)");
}

}  // namespace
}  // namespace dstrain
