#include "engine/program/meaning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "engine/program/schedules/schedule.h"
#include "test/program/models.h"
#include "test/program/mutations.h"
#include "test/support/catch.h"

// What a step computes is proven from its work alone: a sum that is missing, doubled, over other
// ranks or scaled, a state that is not updated, a part that goes elsewhere.

namespace dstrain {
namespace {

using test::Case;

std::string meaning(const Program& program, const Case& c) {
  std::vector<std::string> problems;
  check_meaning(program, c.layout, c.cost, problems);
  return fmt::format("{}", fmt::join(problems, "\n"));
}

/// One case of each way to sum, to gather, to rest and to run.
struct Named {
  std::string name;
  Case c;
};

Case small(int stage, int shard, int replicas, bool recompute = false) {
  return test::make_case(
      stage, shard, replicas, 3,
      {.micro_batches = 2, .prefetch = 1, .recompute = test::recomputed(recompute)});
}

Case wired(const Wires& wires) {
  Case c = small(3, 4, 2);
  for (GroupCost& group : c.cost.groups) group.leading_matrices = 1;
  set_wires(c.layout, c.cost, wires);
  return c;
}

Case resting(int stage, int shard, Place states, Place parameters, UpdateMethod method,
             int master = 4) {
  Case c = small(stage, shard, 1, true);
  c.layout.chunk = 1024;
  c.layout.widths.master = master;
  for (GroupLayout& kind : c.layout.groups) {
    kind.state_place = states;
    kind.parameter_place = parameters;
    kind.update_method = method;
  }
  c.options.inputs = Place::pinned;
  return c;
}

Case pipelined(int stage, int shard, bool tied, ScheduleName schedule) {
  ModelCost cost = test::small_model_cost(4);
  for (BlockCost& block : cost.blocks) block.held_bytes = 40, block.weight_flops = 1e8;
  if (tied) cost.blocks.back().groups.push_back(0);
  const Mesh mesh(2 * shard, {.pipeline = 2, .shard = shard});
  Layout layout = zero_layout(stage, mesh, cost, {});
  ProgramOptions options = {.micro_batches = 3, .prefetch = 1};
  options.schedule =
      make_schedule(schedule, layout.stages, options.micro_batches, equal_costs(layout.stages));
  return {std::move(layout), std::move(cost), std::move(options)};
}

std::vector<Named> cases() {
  using enum Place;
  std::vector<Named> list;
  const auto add = [&](std::string name, Case c) {
    list.push_back({std::move(name), std::move(c)});
  };
  for (const int stage : {0, 1, 2, 3}) {
    add(fmt::format("ZeRO-{}, 2 shards of 2 replicas", stage), small(stage, 2, 2));
    add(fmt::format("ZeRO-{}, 4 shards, recomputed", stage), small(stage, 4, 1, true));
    Case narrow = small(stage, 2, 2);
    narrow.layout.widths.reduce_wire = 2;
    add(fmt::format("ZeRO-{}, sums in bf16", stage), std::move(narrow));
  }
  Case split = small(0, 1, 4);
  split.layout.peer_ranks = 4;
  add("sums in parts", std::move(split));
  Case average = small(1, 2, 1);
  average.layout.widths.average = 4;
  average.cost.blocks[1].state_bytes = 48;
  add("average of weights, untrained state", std::move(average));
  Case pure = small(2, 2, 1);
  pure.layout.widths.master = 0;
  add("no master weights", std::move(pure));
  Case two = small(2, 2, 1);
  two.options.two_at_once = true;
  add("two micro-batches at once", std::move(two));
  for (const int stage : {0, 1, 3})
    add(fmt::format("ZeRO-{}, tensor and expert ranks", stage),
        test::make_exchanging_case(stage, {.micro_batches = 2, .prefetch = 1}));
  add("coded gathers", wired({.gather = CodeFormat::int8}));
  add("coded sums", wired({.reduce = CodeFormat::int4}));
  add("second shards", wired({.second_degree = 2}));
  add("all of ZeRO++",
      wired({.gather = CodeFormat::int8, .reduce = CodeFormat::int8, .second_degree = 2}));
  for (const int master : {4, 2, 0}) {
    for (const UpdateMethod method : {UpdateMethod::streamed, UpdateMethod::host}) {
      const std::string how = fmt::format("{}{}", method == UpdateMethod::host ? "CPU" : "slots",
                                          master == 4   ? ""
                                          : master == 2 ? ", weights in halves"
                                                        : ", no master weights");
      add("states on the host, " + how, resting(1, 2, pinned, device, method, master));
      add("all on the host, " + how, resting(3, 2, pinned, pinned, method, master));
    }
  }
  add("parameters on the host", resting(0, 1, device, pinned, UpdateMethod::streamed));
  for (const int stage : {0, 1, 3})
    add(fmt::format("pipeline, ZeRO-{}", stage),
        pipelined(stage, 2, false, ScheduleName::one_f_one_b));
  for (const int stage : {1, 3})
    add(fmt::format("pipeline, a tied table, ZeRO-{}", stage),
        pipelined(stage, 2, true, ScheduleName::one_f_one_b));
  add("pipeline, backward in two parts", pipelined(0, 1, false, ScheduleName::zero_bubble));
  return list;
}

std::vector<Program> programs_of(const Case& c) {
  std::vector<Program> list;
  for (int r = 0; r < c.layout.pipeline_degree(); ++r) {
    list.push_back(training_program(c.layout, c.cost, c.options, r));
    list.push_back(evaluation_program(c.layout, c.cost, c.options, r));
    list.push_back(gathering_program(c.layout, c.cost, r));
  }
  return list;
}

TEST_CASE("every way to sum, to gather, to rest and to run means a step", "[program][meaning]") {
  for (const auto& [name, c] : cases()) {
    for (const Program& program : programs_of(c)) {
      const std::string found = meaning(program, c);
      if (!found.empty()) FAIL(name << ": " << found);
    }
  }
}

TEST_CASE("what has no bytes is followed, too", "[program][meaning]") {
  using enum Place;
  std::vector<Case> list;
  for (const UpdateMethod method : {UpdateMethod::streamed, UpdateMethod::host}) {
    list.push_back(resting(1, 2, pinned, device, method));
    list.push_back(resting(3, 2, pinned, pinned, method));
  }
  list.push_back(small(0, 1, 2));
  for (Case& c : list) {
    c.layout.widths.moments = 0;  // as of SGD without momentum
    c.cost.blocks.front().saved_bytes = 0;
    for (const Program& program : programs_of(c)) CHECK(meaning(program, c) == "");
  }
}

TEST_CASE("no mutation of a program's work survives", "[program][meaning][property]") {
  struct Score {
    int tried = 0, by_meaning = 0, caught = 0;
  };
  std::map<std::string, Score> scores;
  std::vector<std::string> survivors;
  for (const auto& [name, c] : cases()) {
    for (const Program& program : programs_of(c)) {
      test::for_each_mutation(program, c.layout, [&](const test::Mutation& mutation) {
        Score& score = scores[mutation.operation];
        ++score.tried;
        const bool meant = meaning(mutation.program, c).empty();
        score.by_meaning += int{!meant};
        if (!meant || !check(mutation.program, c.layout, c.cost).empty()) {
          ++score.caught;
          return;
        }
        survivors.push_back(fmt::format(
            "{}: {} {} in #{} {}", name, mutation.operation, mutation.change, mutation.action,
            mutation.action < 0
                ? ""
                : describe(program.actions[static_cast<std::size_t>(mutation.action)], c.cost)));
      });
    }
  }
  const auto print = [](const std::string& operation, const Score& score) {
    std::cout << fmt::format("{:<10} {:>6} mutations, {:>6} caught by meaning, {:>3} survive\n",
                             operation, score.tried, score.by_meaning, score.tried - score.caught);
  };
  Score all;
  for (const auto& [operation, score] : scores) {
    print(operation, score);
    all.tried += score.tried;
    all.by_meaning += score.by_meaning;
    all.caught += score.caught;
  }
  print("all", all);
  for (std::size_t i = 0; i < std::min<std::size_t>(survivors.size(), 40); ++i)
    UNSCOPED_INFO(survivors[i]);
  CHECK(survivors.empty());
  CHECK(all.tried > 10000);
}

TEST_CASE("a step that loses a sum over replicas or over shards is reported",
          "[program][meaning]") {
  int lost = 0;
  for (const int stage : {0, 1, 2, 3}) {
    for (const int shard : {1, 2, 4}) {
      for (const int replicas : {1, 2, 3}) {
        const Case c = small(stage, shard, replicas);
        const Program program = training_program(c.layout, c.cost, c.options);
        test::for_each_mutation(program, c.layout, [&](const test::Mutation& mutation) {
          if (mutation.operation != "all sums") return;
          ++lost;
          CAPTURE(stage, shard, replicas, mutation.change);
          CHECK(meaning(mutation.program, c) != "");
        });
      }
    }
  }
  CHECK(lost >= 40);
}

TEST_CASE("a sum within nodes, between them and gathered in place means a step",
          "[program][meaning]") {
  Case c = small(2, 4, 2);
  c.layout.second_degree = 2;
  const int left_out = GENERATE(-1, 0, 1, 2);
  Program program = training_program(c.layout, c.cost, c.options);
  for (Action& action : program.actions) {
    if (action.kind != ActionKind::reduce) continue;
    const auto direct = std::get<work::Exchange>(action.work.front());
    const View whole = direct.from;
    View part = whole, own = whole;
    part.elements /= 2;
    part.share = Share{CommAxis::shard_inner, part.elements};
    own.elements /= 4;
    own.share = Share{Axis::shard, own.elements};
    std::vector<Work> hops = {
        work::Exchange{CommOp::reduce_scatter, CommAxis::shard_inner, whole, part},
        work::Exchange{CommOp::all_reduce, CommAxis::shard_outer, part, part},
        work::Exchange{CommOp::all_gather, CommAxis::shard_inner, part, whole}};
    if (left_out >= 0) hops.erase(hops.begin() + left_out);
    hops.push_back(work::Move{own, direct.to});
    action.work.erase(action.work.begin());
    action.work.insert(action.work.begin(), hops.begin(), hops.end());
  }
  CHECK(meaning(program, c).empty() == (left_out < 0));
}

TEST_CASE("problems of what a step means are sentences", "[program][meaning]") {
  const Case c = small(2, 2, 2);
  const Program program = training_program(c.layout, c.cost, c.options);
  std::map<std::string, std::string> found;
  test::for_each_mutation(program, c.layout, [&](const test::Mutation& mutation) {
    if (mutation.operation == "all sums") found[mutation.change] = meaning(mutation.program, c);
  });
  CHECK(found["no all-reduce along data"] ==
        "#29 norm: the gradient of block0 is not summed over all ranks with the same weights once\n"
        "#29 norm: the gradient of block1 is not summed over all ranks with the same weights once\n"
        "#29 norm: the gradient of block2 is not summed over all ranks with the same weights once");
}

TEST_CASE("a program of 9,000 actions is followed at once", "[program][meaning]") {
  // As many blocks as a large language model has.
  const ModelCost deep = test::small_model_cost(128);
  const Mesh mesh(4096, {.shard = 4096});
  const Case c{zero_layout(3, mesh, deep, {}),
               deep,
               {.micro_batches = 8, .prefetch = 2, .recompute = std::vector<bool>(128, true)}};
  const Program program = training_program(c.layout, c.cost, c.options);
  const auto seconds = [](const auto& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const double followed = seconds([&] { CHECK(meaning(program, c) == ""); }),
               checked = seconds([&] { CHECK(check(program, c.layout, c.cost).empty()); });
  std::cout << fmt::format("{} actions followed in {:.1f} ms, checked in {:.1f} ms\n",
                           program.actions.size(), 1e3 * followed, 1e3 * checked);
  CHECK(checked < 1);  // 23 ms on an idle core; others may run beside
}

}  // namespace
}  // namespace dstrain
