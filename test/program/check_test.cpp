#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "engine/program/lane_order.h"
#include "engine/program/simulate.h"
#include "test/program/models.h"
#include "test/program/soundness.h"
#include "test/support/catch.h"

// Every program that is built is sound, and every way of breaking one is found: so `check` is able
// to fail.

namespace dstrain {
namespace {

using test::Case;
using test::problems;

void for_each_case(const std::function<void(const Case&)>& visit) {
  struct MicroBatches {
    int number;
    bool two_at_once;
  };
  for (const int stage : {0, 1, 2, 3}) {
    for (const int shard : {1, 2, 4}) {
      for (const int replicas : {1, 2}) {
        for (const int blocks : {1, 2, 3, 4, 5, 6}) {
          for (const auto& [number, two] :
               {MicroBatches{1, false}, MicroBatches{2, false}, MicroBatches{2, true},
                MicroBatches{3, false}, MicroBatches{3, true}}) {
            for (const int prefetch : {0, 1, 2, 3}) {
              for (const bool recompute : {false, true}) {
                INFO("stage " << stage << " shard " << shard << " replicas " << replicas
                              << " blocks " << blocks << " micro-batches " << number << " two "
                              << two << " prefetch " << prefetch << " recompute " << recompute);
                Case c = test::make_case(stage, shard, replicas, blocks,
                                         {.micro_batches = number,
                                          .prefetch = prefetch,
                                          .recompute = test::recomputed(recompute),
                                          .two_at_once = two});
                c.layout.peer_ranks = prefetch % 2 == 0 ? 8 : 1;
                // Untrained state, as batch norm has it.
                for (int b = 0; blocks % 2 == 0 && b < blocks; ++b)
                  c.cost.blocks[static_cast<std::size_t>(b)].state_bytes = 48;
                visit(c);
              }
            }
          }
        }
      }
    }
  }
}

/// The program without action `index`; waits for it go, too.
Program without(const Program& program, int index) {
  Program copy = program;
  copy.actions.erase(copy.actions.begin() + index);
  for (Action& action : copy.actions) {
    for (std::vector<int> Action::*waits : {&Action::after, &Action::after_previous}) {
      std::vector<int> after;
      for (const int other : action.*waits) {
        if (other != index) after.push_back(other > index ? other - 1 : other);
      }
      action.*waits = after;
    }
  }
  return copy;
}

/// `index` and its neighbour change places, if neither waits for the other.
Program swapped(const Program& program, std::size_t index) {
  Program copy = program;
  std::swap(copy.actions[index], copy.actions[index + 1]);
  const int first = static_cast<int>(index);
  for (Action& action : copy.actions) {
    for (std::vector<int> Action::*waits : {&Action::after, &Action::after_previous}) {
      for (int& other : action.*waits)
        other = other == first ? first + 1 : other == first + 1 ? first : other;
    }
  }
  return copy;
}

Program reordered_step(const Case& c, const std::function<void(Program&)>& mutate) {
  Program program = training_program(c.layout, c.cost, c.options);
  mutate(program);
  return program;
}

TEST_CASE("every program of every strategy is sound", "[program][property]") {
  int cases = 0;
  for_each_case([&](const Case& c) {
    ++cases;
    test::require_sound(c);
  });
  CHECK(cases == 5760);
}

TEST_CASE("two micro-batches at once are sound where one group has the gradients of all blocks",
          "[program]") {
  const int stage = GENERATE(2, 3), groups = GENERATE(1, 2), micro_batches = GENERATE(2, 3);
  ModelCost cost = test::small_model_cost(4);
  cost.groups.resize(static_cast<std::size_t>(groups));
  for (std::size_t b = 0; b < 4; ++b) cost.blocks[b].groups = {groups == 2 && b > 0 ? 1 : 0};
  const Mesh mesh(2, {.shard = 2});
  test::require_sound({zero_layout(stage, mesh, cost, {}),
                       cost,
                       {.micro_batches = micro_batches, .two_at_once = true}});
}

TEST_CASE("no wait of any program can be left out", "[program][property]") {
  std::size_t removed = 0;
  for_each_case([&](const Case& c) {
    if (c.options.prefetch == 3 && c.cost.blocks.size() == 6) return;  // as 2, only slower
    for (const Program& program : {training_program(c.layout, c.cost, c.options),
                                   evaluation_program(c.layout, c.cost, c.options)})
      removed += test::require_each_wait(program, c);
  });
  CHECK(removed > 10000);
}

TEST_CASE("blocks of one group run beside each other where none reads a tensor of another",
          "[program][property]") {
  std::size_t removed = 0;
  for (const int stage : {0, 1, 2, 3}) {
    for (const int shard : {1, 2}) {
      for (const int micro_batches : {2, 3, 4}) {
        for (const bool of_one_reader : {false, true}) {
          CAPTURE(stage, shard, micro_batches, of_one_reader);
          Case c{.layout = {}, .cost = test::small_model_cost(4), .options = {}};
          c.cost.groups.resize(2);
          c.cost.groups.front().tensor_sizes = {1000, 1500, 2000, 7, 7, 7};
          for (int b = 0; b < 4; ++b) c.cost.blocks[static_cast<std::size_t>(b)].groups = {b / 3};
          for (GroupCost& group : c.cost.groups) group.of_one_reader = of_one_reader;
          c.layout = zero_layout(stage, Mesh(shard, {.shard = shard}), c.cost, {});
          c.options = {.micro_batches = micro_batches, .two_at_once = true};
          test::require_sound(c);
          const Program program = training_program(c.layout, c.cost, c.options);
          removed += test::require_each_wait(program, c);
          const auto backward = [&](int block, int micro_batch) {
            return static_cast<int>(std::ranges::find_if(program.actions,
                                                         [&](const Action& action) {
                                                           return action.kind ==
                                                                      ActionKind::backward &&
                                                                  action.block == block &&
                                                                  action.micro_batch == micro_batch;
                                                         }) -
                                    program.actions.begin());
          };
          const LaneOrder order(program.actions, /*runs=*/1);
          CHECK(order.before(backward(1, 0), backward(1, 1)));
          // Under ZeRO-2 and 3 each micro-batch has a gradient of its own until it is reduced.
          const bool apart = of_one_reader || (stage >= 2 && shard > 1);
          CHECK(order.before(backward(2, 1), backward(1, 0)) == !apart);
        }
      }
    }
  }
  CHECK(removed > 500);
}

TEST_CASE("no action but a recomputation can be left out or come twice", "[program][property]") {
  const int stage = GENERATE(0, 1, 2, 3), shard = GENERATE(1, 2), blocks = GENERATE(1, 3, 5);
  const bool recompute = GENERATE(false, true);
  const Case c = test::make_case(
      stage, shard, 2, blocks,
      {.micro_batches = 2, .prefetch = 1, .recompute = test::recomputed(recompute)});
  const Program program = training_program(c.layout, c.cost, c.options);
  for (int i = 0; i < static_cast<int>(program.actions.size()); ++i) {
    const Action& action = program.actions[static_cast<std::size_t>(i)];
    CAPTURE(stage, shard, blocks, i, describe(action, c.cost));
    if (action.kind != ActionKind::recompute) CHECK(problems(without(program, i), c) != "");

    Program twice = program;
    twice.actions.push_back(action);
    CHECK(problems(twice, c) != "");
  }
}

TEST_CASE("neighbours of one lane cannot change places unless their order is free",
          "[program][property]") {
  const int stage = GENERATE(0, 1, 2, 3);
  const Case c = test::make_case(
      stage, 2, 1, 4, {.micro_batches = 2, .prefetch = 1, .recompute = test::recomputed(true)});
  const Program program = training_program(c.layout, c.cost, c.options);
  int tried = 0;
  for (std::size_t i = 0; i + 1 < program.actions.size(); ++i) {
    const Action &a = program.actions[i], &b = program.actions[i + 1];
    // Updates do not touch each other, and a release may come later as long as nothing needs the
    // slot meanwhile.
    const bool free = (a.kind == ActionKind::update && b.kind == ActionKind::update) ||
                      (a.kind == ActionKind::clear && b.kind != ActionKind::backward) ||
                      b.kind == ActionKind::clear ||
                      (a.kind == ActionKind::release && b.group != a.group && b.block != a.group);
    if (a.lane != b.lane || free || a.lane == Lane::gather) continue;
    CAPTURE(stage, i, describe(a, c.cost), describe(b, c.cost));
    CHECK(problems(swapped(program, i), c) != "");
    ++tried;
  }
  CHECK(tried > 10);
}

TEST_CASE("a wrong buffer, collective, number or size is reported", "[program][property]") {
  const Case c = test::make_case(3, 2, 1, 4, {.micro_batches = 2, .prefetch = 1});
  const Program program = training_program(c.layout, c.cost, c.options);
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    CAPTURE(i, describe(program.actions[i], c.cost));
    const auto broken = [&](const std::function<void(Action&)>& mutate) {
      Program copy = program;
      mutate(copy.actions[i]);
      return !check(copy, c.layout, c.cost).empty();
    };
    CHECK(broken([](Action& a) { a.block = a.block < 0 ? 0 : a.block + 1; }));
    CHECK(broken([](Action& a) { a.group = a.group < 0 ? 0 : a.group == 3 ? 2 : a.group + 1; }));
    CHECK(broken([](Action& a) { a.micro_batch = a.micro_batch < 0 ? 0 : 1 - a.micro_batch; }));
    for (std::vector<int> Action::*ids : {&Action::reads, &Action::writes, &Action::frees}) {
      CHECK(broken([&](Action& a) { (a.*ids).push_back(1000); }));
      CHECK(broken([&](Action& a) { (a.*ids).push_back(0); }));
      for (std::size_t k = 0; k < (program.actions[i].*ids).size(); ++k) {
        CHECK(broken([&](Action& a) { (a.*ids).erase((a.*ids).begin() + std::ptrdiff_t(k)); }));
        CHECK(broken([&](Action& a) { ++(a.*ids)[k]; }));
        CHECK(broken([&](Action& a) { (a.*ids).push_back((a.*ids)[k]); }));
      }
    }
    CHECK(broken([](Action& a) { a.workspace += 1; }));
    CHECK(broken([](Action& a) { a.comm.push_back({}); }));
    CHECK(broken([&](Action& a) { a.after.push_back(static_cast<int>(i)); }));
    CHECK(broken([&](Action& a) { a.after_previous.push_back(static_cast<int>(i)); }));
    CHECK(broken([&](Action& a) { a.after_previous.push_back(1000); }));
    const ActionKind kind = program.actions[i].kind;
    if (kind == ActionKind::gather || kind == ActionKind::reduce || kind == ActionKind::norm) {
      CHECK(broken([](Action& a) { a.comm.clear(); }));
      CHECK(broken([](Action& a) { a.comm.front().bytes -= 1; }));
      CHECK(broken([](Action& a) { a.comm.front().width += 1; }));
      CHECK(broken([](Action& a) { a.comm.front().axis = Axis::data; }));
    }
  }
}

TEST_CASE("a collective inside a block that is missing, moved or changed is reported",
          "[program][property]") {
  const int stage = GENERATE(0, 1, 2, 3);
  const Case c = test::make_exchanging_case(
      stage, {.micro_batches = 2, .prefetch = 1, .recompute = test::recomputed(true)});
  const Program training = training_program(c.layout, c.cost, c.options),
                evaluation = evaluation_program(c.layout, c.cost, c.options);
  for (const Program& program : {training, evaluation}) {
    REQUIRE(problems(program, c) == "");
    std::size_t found = 0;
    for (std::size_t i = 0; i < program.actions.size(); ++i) {
      const Action& action = program.actions[i];
      if (!runs_block(action.kind)) continue;
      CAPTURE(stage, i, describe(action, c.cost));
      const auto broken = [&](const std::function<void(std::vector<Comm>&)>& mutate) {
        Program copy = program;
        mutate(copy.actions[i].comm);
        return problems(copy, c) != "";
      };
      found += action.comm.size();
      for (std::size_t k = 0; k < action.comm.size(); ++k) {
        CHECK(broken([&](auto& comm) { comm.erase(comm.begin() + std::ptrdiff_t(k)); }));
        CHECK(broken([&](auto& comm) { comm.push_back(comm[k]); }));
        CHECK(broken([&](auto& comm) { comm[k].bytes += 2; }));
        CHECK(broken([&](auto& comm) { comm[k].axis = Axis::shard; }));
        CHECK(broken([&](auto& comm) { comm[k].op = CommOp::all_gather, comm[k].width = 1; }));
        if (k > 0) CHECK(broken([&](auto& comm) { std::swap(comm[k - 1], comm[k]); }));
      }
      CHECK(broken([&](auto& comm) { comm.push_back({}); }));
    }
    // Each micro-batch has gather, statistics and exchange of experts in forward and recomputation,
    // one in backward; there is one sequence rank. Evaluation has no statistics.
    CHECK(found == (program.kind == ProgramKind::training ? 2U * (3 + 3 + 1) : 2U));
  }
}

TEST_CASE("the average of the weights rests beside the states, and updates change it",
          "[program][property]") {
  const int stage = GENERATE(0, 1, 3);
  CAPTURE(stage);
  Case c = test::make_case(stage, 2, 1, 3, {.micro_batches = 2, .prefetch = 1});
  const Bytes master = peak_memory(training_program(c.layout, c.cost, c.options)).master;
  c.layout.widths.average = 4;
  c.cost.blocks[1].state_bytes = 48;
  const Program training = training_program(c.layout, c.cost, c.options);
  REQUIRE(problems(training, c) == "");
  REQUIRE(peak_memory(training).average == master);
  CHECK(peak_memory(training).block_states == 96);  // they have one, too
  for (std::size_t i = 0; i < training.actions.size(); ++i) {
    const int average = training.find(training.actions[i].writes, BufferRole::average);
    CHECK((average >= 0) == (training.actions[i].kind == ActionKind::update));
    if (average < 0) continue;
    Program other = training;
    std::erase(other.actions[i].writes, average);
    CHECK(problems(other, c) != "");
  }
}

TEST_CASE("untrained state is changed by forwards of a training step and read by others",
          "[program][property]") {
  Case c = test::make_case(
      2, 2, 1, 3, {.micro_batches = 2, .prefetch = 1, .recompute = test::recomputed(true)});
  c.cost.blocks[1].state_bytes = 48;
  const Program training = training_program(c.layout, c.cost, c.options),
                evaluation = evaluation_program(c.layout, c.cost, c.options),
                gathering = gathering_program(c.layout, c.cost);
  for (const Program& program : {training, evaluation, gathering}) {
    REQUIRE(problems(program, c) == "");
    REQUIRE(program.buffers_of(BufferRole::block_state).size() == 1);
    const int state = program.buffers_of(BufferRole::block_state).front();
    CHECK(peak_memory(program).block_states == 48);
    for (std::size_t i = 0; i < program.actions.size(); ++i) {
      const Action& action = program.actions[i];
      CAPTURE(i, describe(action, c.cost));
      const bool writes = std::ranges::count(action.writes, state) > 0,
                 reads = std::ranges::count(action.reads, state) > 0;
      const bool forward = action.kind == ActionKind::forward && action.block == 1;
      CHECK(writes == (forward && program.kind == ProgramKind::training));
      CHECK(reads ==
            ((forward || (action.kind == ActionKind::recompute && action.block == 1)) && !writes));
      Program other = program;
      Action& changed = other.actions[i];
      std::erase(changed.writes, state);
      std::erase(changed.reads, state);
      if (writes || reads) CHECK(problems(other, c) != "");
      if (!writes) changed.writes.push_back(state);
      if (writes) changed.reads.push_back(state);
      CHECK(problems(other, c) != "");
    }
    Program other = program;
    other.buffers[static_cast<std::size_t>(state)].elements = 44;
    CHECK(problems(other, c) ==
          "the buffer list does not hold the untrained state of block1 as it should");
    other = program;
    other.buffers.push_back({.role = BufferRole::block_state, .owner = 2, .elements = 8});
    CHECK(problems(other, c) != "");
  }
}

TEST_CASE("other or smaller buffers than the program uses are reported", "[program]") {
  const Case c = test::make_case(3, 2, 1, 4, {.micro_batches = 1, .prefetch = 1});
  const Program program = reordered_step(c, [](Program&) {});
  CHECK(problems(program, c) == "");
  for (std::size_t id = 0; id < program.buffers.size(); ++id) {
    const BufferRole role = program.buffers[id].role;
    // Which of several buffers holds the largest group, or any, is the builder's choice.
    if (program.buffers[id].owner < 0 && program.buffers_of(role).front() != static_cast<int>(id))
      continue;
    CAPTURE(id, role_name(role));
    // A smaller buffer, and one that is another kind's.
    CHECK(problems(reordered_step(c, [&](Program& p) { --p.buffers[id].elements; }), c) != "");
    CHECK(problems(reordered_step(c, [&](Program& p) { p.buffers[id].role = BufferRole::wire; }),
                   c) != "");
  }
  CHECK(problems(reordered_step(c, [](Program& p) { ++p.micro_batches; }), c) != "");
}

TEST_CASE("a program is sound for its own layout only", "[program]") {
  const ProgramOptions options = {.micro_batches = 2, .prefetch = 1};
  for (const int own : {0, 1, 2, 3}) {
    for (const int other : {0, 1, 2, 3}) {
      const Case a = test::make_case(own, 2, 1, 3, options),
                 b = test::make_case(other, 2, 1, 3, options);
      CAPTURE(own, other);
      CHECK((problems(training_program(a.layout, a.cost, options), b) == "") == (own == other));
    }
  }
}

TEST_CASE("sums of gradients that ranks have in parts are gathered once, before the update",
          "[program]") {
  Case c = test::make_case(0, 1, 4, 3, {.micro_batches = 2, .prefetch = 1});
  c.layout.peer_ranks = 4;
  const Program program = training_program(c.layout, c.cost, c.options);
  const int gather = test::indices(program, ActionKind::gather_sum).at(0),
            norm = test::indices(program, ActionKind::norm).at(0);
  const auto changed = [&](const std::function<void(Program&)>& mutate) {
    return problems(reordered_step(c, mutate), c);
  };
  CHECK(problems(without(program, gather), c) ==
        "#23 update(block2): reads parts of several kinds or ages in buffer 11 (gradient)");
  CHECK(changed([&](Program& p) { p.actions[static_cast<std::size_t>(gather)].after.clear(); }) ==
        "#16 gather_sum(block2) does not wait for #15 reduce(block2), micro-batch 1");
  CHECK(changed([&](Program& p) { p.actions[static_cast<std::size_t>(norm)].after.clear(); }) ==
        "#23 norm does not wait for #21 reduce(block0), micro-batch 1");  // nor for those before
  // A gather before the sum, with all waits.
  CHECK(changed([&](Program& p) {
          Action& reduce = p.actions[static_cast<std::size_t>(gather - 1)];
          Action& gathered = p.actions[static_cast<std::size_t>(gather)];
          std::swap(reduce, gathered);
          reduce.after = gathered.after;
          gathered.after = {gather - 1};
        }) == "#15 gather_sum(block2): writes buffer 11 (gradient) as it is");
  // To the layout it is one more way to the same sums.
  Case whole = c;
  whole.layout.peer_ranks = 1;
  CHECK(problems(program, whole) == "");
}

TEST_CASE("problems are sentences that name the actions", "[program]") {
  const Case c = test::make_case(2, 2, 1, 3, {.micro_batches = 1, .prefetch = 1});
  const Program program = training_program(c.layout, c.cost, c.options);
  const auto message = [&](const std::function<void(Program&)>& mutate) {
    Program copy = program;
    mutate(copy);
    return problems(copy, c);
  };
  const int reduce = test::indices(program, ActionKind::reduce).at(0);
  CHECK(problems(without(program, reduce), c) ==
        "#12 clear(block0), micro-batch 0: writes over buffer 17 (whole gradient), which is not "
        "freed");
  CHECK(message([&](Program& p) { p.actions[static_cast<std::size_t>(reduce)].after.clear(); }) ==
        "#9 reduce(block2), micro-batch 0 does not wait for #8 backward(block2), micro-batch 0");
  const int forward = test::indices(program, ActionKind::forward).at(0);
  CHECK(message([&](Program& p) { p.actions[static_cast<std::size_t>(forward)].after = {12}; }) ==
        "#3 forward(block0), micro-batch 0 waits for #12, which does not stand before it");
}

}  // namespace
}  // namespace dstrain
