#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "engine/base/error.h"
#include "engine/program/plan_report.h"
#include "test/program/models.h"
#include "test/program/soundness.h"
#include "test/support/catch.h"

// Programs whose parameters or gradients travel as codes, and with a second shard: sound in every
// combination, and without a wait, read, write, free or collective that could go.

namespace dstrain {
namespace {

using test::Case;
using test::problems;

std::string name(const Wires& w) {
  const auto format = [](const std::optional<CodeFormat>& f) {
    return f ? static_cast<int>(*f) : -1;
  };
  return fmt::format("gather {}, reduce {}, second {}", format(w.gather), format(w.reduce),
                     w.second_degree);
}

/// The first tensor of each group is a matrix, the second a vector; the first group has no matrix.
Case wired(Case c, const Wires& wires) {
  for (GroupCost& group : c.cost.groups) group.leading_matrices = 1;
  if (c.cost.groups.size() > 2) c.cost.groups.front().leading_matrices = 0;
  set_wires(c.layout, c.cost, wires);
  return c;
}

/// Parameters and states rest in pinned host memory, and the device updates them.
Case on_host(Case c) {
  c.layout.chunk = 1024;
  for (GroupLayout& kind : c.layout.groups) {
    kind.state_place = kind.parameter_place = Place::pinned;
    kind.update_method = UpdateMethod::streamed;
  }
  return c;
}

std::vector<Wires> all_wires(int stage, int shard) {
  std::vector<Wires> list;
  const std::optional<CodeFormat> none;
  for (const auto& reduce :
       {none, std::optional(CodeFormat::int8), std::optional(CodeFormat::int4)}) {
    if (stage == 2) {
      if (reduce) list.push_back({.reduce = reduce});
      continue;
    }
    for (const auto& gather : {none, std::optional(CodeFormat::int4)}) {
      for (const int degree : {1, 2, 4}) {
        if (shard % degree == 0 && (reduce || gather || degree > 1))
          list.push_back({gather, reduce, degree});
      }
    }
  }
  return list;
}

void for_each_wired_case(const std::function<void(const Case&)>& visit) {
  for (const int stage : {2, 3}) {
    for (const int shard : {2, 4}) {
      for (const int replicas : {1, 2}) {
        for (const int blocks : {1, 3, 5}) {
          for (const int micro_batches : {1, 2}) {
            for (const int prefetch : {0, 1, 3}) {
              for (const bool recompute : {false, true}) {
                const Case plain = test::make_case(stage, shard, replicas, blocks,
                                                   {.micro_batches = micro_batches,
                                                    .prefetch = prefetch,
                                                    .recompute = test::recomputed(recompute)});
                for (const Wires& wires : all_wires(stage, shard)) {
                  INFO("stage " << stage << " shard " << shard << " replicas " << replicas
                                << " blocks " << blocks << " micro-batches " << micro_batches
                                << " prefetch " << prefetch << " recompute " << recompute << ": "
                                << name(wires));
                  const Case c = wired(plain, wires);
                  visit(c);
                  if (stage < 3 || replicas > 1 || prefetch > 1) continue;
                  INFO("parameters on the host");
                  visit(on_host(c));
                }
              }
            }
          }
        }
      }
    }
  }
}

Case small_case(const Wires& wires, int shard = 4) {
  return wired(test::make_case(3, shard, 1, 5, {.micro_batches = 2, .prefetch = 1}), wires);
}

}  // namespace

TEST_CASE("every program of ZeRO++ is sound", "[program][property]") {
  for_each_wired_case(test::require_sound);
}

TEST_CASE("no wait of a program of ZeRO++ can be left out", "[program][property]") {
  std::size_t removed = 0;
  for_each_wired_case([&](const Case& c) {
    removed += test::require_each_wait(training_program(c.layout, c.cost, c.options), c);
  });
  CHECK(removed > 10000);
}

TEST_CASE("no action, buffer or collective of a program of ZeRO++ can be left out or changed",
          "[program][property]") {
  const int degree = GENERATE(1, 2, 4);
  const bool gather = GENERATE(false, true), reduce = GENERATE(false, true);
  const bool host = GENERATE(false, true);
  const Case on_device =
      small_case({gather ? std::optional(CodeFormat::int8) : std::nullopt,
                  reduce ? std::optional(CodeFormat::int4) : std::nullopt, degree});
  const Case c = host ? on_host(on_device) : on_device;
  const Program program = training_program(c.layout, c.cost, c.options);
  REQUIRE(problems(program, c) == "");
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    CAPTURE(degree, gather, reduce, host, i, describe(action, c.cost));
    const auto broken = [&](const std::function<void(Action&)>& mutate) {
      Program copy = program;
      mutate(copy.actions[i]);
      return !check(copy, c.layout, c.cost).empty();
    };
    Program twice = program;
    twice.actions.push_back(action);
    CHECK(problems(twice, c) != "");
    for (std::vector<int> Action::*ids : {&Action::reads, &Action::writes, &Action::frees}) {
      CHECK(broken([&](Action& a) { (a.*ids).push_back(0); }));
      for (std::size_t k = 0; k < (action.*ids).size(); ++k) {
        CHECK(broken([&](Action& a) { (a.*ids).erase((a.*ids).begin() + std::ptrdiff_t(k)); }));
        CHECK(broken([&](Action& a) { (a.*ids).push_back((a.*ids)[k]); }));
        CHECK(broken([&](Action& a) { ++(a.*ids)[k]; }));
      }
    }
    for (std::size_t k = 0; k < action.comm.size(); ++k) {
      CHECK(broken([&](Action& a) { a.comm.erase(a.comm.begin() + std::ptrdiff_t(k)); }));
      CHECK(broken([&](Action& a) { a.comm[k].bytes -= 1; }));
      CHECK(broken([&](Action& a) { a.comm[k].width += 1; }));
      CHECK(broken([&](Action& a) {
        CommAxis& axis = a.comm[k].axis;
        axis = axis == Axis::shard ? CommAxis::shard_inner : Axis::shard;
      }));
    }
  }
  for (std::size_t id = 0; id < program.buffers.size(); ++id) {
    const BufferRole role = program.buffers[id].role;
    if (role != BufferRole::second_shard && role != BufferRole::coded_parameters &&
        role != BufferRole::coded_gradient)
      continue;
    CAPTURE(id, role_name(role));
    Program copy = program;
    --copy.buffers[id].elements;
    CHECK(problems(copy, c) != "");
    copy = program;
    copy.buffers[id].role = BufferRole::wire;
    CHECK(problems(copy, c) != "");
  }
}

TEST_CASE("the second shard is this step's: its first gather fills it, the last frees it",
          "[program]") {
  const bool host = GENERATE(false, true);
  const auto placed = [&](const Case& c) { return host ? on_host(c) : c; };
  const Case plain = placed(small_case({})), c = placed(small_case({.second_degree = 2}));
  const Program program = training_program(c.layout, c.cost, c.options),
                before = training_program(plain.layout, plain.cost, plain.options);
  Bytes held = 0;
  for (int g = 0; g < 5; ++g) {
    std::vector<const Action*> gathers;
    for (const Action& a : program.actions) {
      if (a.kind == ActionKind::gather && a.group == g) gathers.push_back(&a);
    }
    REQUIRE(!gathers.empty());
    const auto fetches = std::ranges::count_if(program.actions, [&](const Action& a) {
      return a.kind == ActionKind::fetch_parameters && a.group == g;
    });
    CHECK(fetches == (host ? 1 : 0));
    CHECK(gathers.front()->comm.front().axis == Axis::shard);
    for (std::size_t k = 1; k < gathers.size(); ++k) {
      CHECK(gathers[k]->comm.front().axis == CommAxis::shard_inner);
      CHECK(gathers[k]->comm.front().bytes == gathers.front()->comm.front().bytes);
      CHECK(gathers[k]->frees.size() == (k + 1 == gathers.size() ? 1U : 0U));
    }
    if (gathers.size() > 1) held += c.layout.flat[static_cast<std::size_t>(g)].padded();  // 2 B / 2
  }
  CHECK(held > 0);
  CHECK(peak_memory(program).allocated() == peak_memory(before).allocated() + held);
  // A second gather before the first one of the step, and a first one that fills nothing.
  const std::vector<int> gathers = test::indices(program, ActionKind::gather);
  for (const int i : gathers) {
    Program copy = program;
    Action& a = copy.actions[static_cast<std::size_t>(i)];
    if (copy.find(a.writes, BufferRole::second_shard) < 0) continue;
    std::swap(a.reads, a.writes);
    CHECK(problems(copy, c) != "");
  }
}

TEST_CASE("the sizes of coded messages are those of their codes, scales and vectors", "[program]") {
  // Group 3: 2500 elements of a matrix, which end at 2560, then 7, padded to 4 x 768.
  const Case c = small_case({CodeFormat::int4, CodeFormat::int8, 2});
  CHECK(c.layout.groups[0].coded_elements == 0);
  CHECK(c.layout.groups[3].coded_elements == 2560);
  CHECK(c.layout.flat[3].padded() == 3072);
  // int4: 384 bytes, 6 scales of 2, filled up to 16; 512 plain elements of 2.
  CHECK(c.layout.gather_scratch(3) == 4 * (384 + 16 + 512 * 2));
  // int8: 768 bytes, 6 scales, filled up; 512 plain elements of 4; to and from 2 groups.
  CHECK(c.layout.reduce_scratch(3) == 2 * 2 * (784 + 512 * 4));
  CHECK_FALSE(c.layout.gathers_codes(0));
  CHECK(c.layout.reduces_codes(0));
  const Program program = training_program(c.layout, c.cost, c.options);
  for (const Action& a : program.actions) {
    if (a.group != 3 || a.kind != ActionKind::reduce) continue;
    CHECK(a.comm ==
          std::vector<Comm>{{CommOp::reduce_scatter, CommAxis::shard_inner, 4, 2 * 3072},
                            {CommOp::reduce_scatter, CommAxis::shard_inner, 4, 2 * 3072},
                            {CommOp::all_to_all, CommAxis::shard_outer, 1, 2 * (784 + 512 * 4)}});
  }
  const Program evaluation = evaluation_program(c.layout, c.cost, c.options);
  CHECK(evaluation.buffers_of(BufferRole::second_shard).empty());
  CHECK(evaluation.buffers_of(BufferRole::coded_parameters).size() == 1);
}

TEST_CASE("codes and inner groups take the time of their bytes", "[program][simulate]") {
  const Case c = small_case({CodeFormat::int4, CodeFormat::int8, 2});
  const Program program = training_program(c.layout, c.cost, c.options);
  Machine machine = h200();
  machine.ranks_per_node = 2;
  machine.link_bytes_per_s = 1e11;
  machine.network_bytes_per_s = 1e9;
  machine.memory_bytes_per_s = 1e12;
  machine.collective_latency_s = machine.hop_latency_s = 0;
  const Simulation step = simulate(program, c.layout, c.cost, machine);
  const double codes = 4 * (384 + 16 + 512 * 2), partial = 784 + 512 * 4;
  const double first = codes * 3 / 4 / 1e9 +
                       (768 * 2 + codes / 4 + codes + 3072 * 2 + 2 * 1536 * 2) / 1e12,
               later = 3072 * 2 / 2 / 1e11,
               // Two groups of ranks pass through a node's adapters at once.
      reduce = 3072 * 4 / 2 / 1e11 + 2 * partial / 1e9 + (1536 * 4 + 4 * partial + 768 * 4) / 1e12;
  int gathers = 0;
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const Action& a = program.actions[i];
    const double taken = step.action_end_s[i] - step.action_start_s[i];
    CAPTURE(i, describe(a, c.cost));
    if (a.group != 3) continue;
    // A little longer where the block beside it uses the same memory.
    if (a.kind == ActionKind::gather)
      CHECK(taken == Approx(gathers++ == 0 ? first : later).epsilon(0.03));
    if (a.kind == ActionKind::reduce) CHECK(taken == Approx(reduce));
  }
  CHECK(gathers > 1);
}

TEST_CASE("without ZeRO++ nothing changes", "[program]") {
  const Case plain = test::make_case(3, 2, 1, 4, {.micro_batches = 2, .prefetch = 1});
  const Case c = wired(plain, {});
  CHECK(hash(training_program(plain.layout, plain.cost, plain.options), plain.layout) ==
        hash(training_program(c.layout, c.cost, c.options), c.layout));
  std::set<std::uint64_t> seen;
  for (const Wires& wires : all_wires(3, 2)) {
    const Case other = wired(plain, wires);
    seen.insert(hash(training_program(plain.layout, plain.cost, plain.options), other.layout));
  }
  CHECK(seen.size() == all_wires(3, 2).size());
}

TEST_CASE("a second shard divides the ranks that share the states", "[strategy]") {
  Recipe r;
  r.batch = {.global = 96, .micro = 8};
  r.parallel.zero = {.stage = 3, .second_shard = 4};
  const ModelCost cost = test::small_model_cost(4);
  CHECK(make_strategy(r, cost, 8, cpu()).layout.second_degree == 4);
  try {
    (void)make_strategy(r, cost, 6, cpu());
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) + "; " + error.hint() ==
          "parallel.zero.second_shard: 4 does not divide the 6 ranks that share one copy of the "
          "states; use 1, 2, 3, 6, or 0 for none");
  }
  // One rank gathers and reduces nothing.
  r.parallel.zero.second_shard = 0;
  r.precision.gather = GatherType::int8;
  r.precision.reduce = ReduceType::int4;
  const Strategy alone = make_strategy(r, cost, 1, cpu());
  CHECK_FALSE(alone.layout.gather_format);
  CHECK(channels(alone.training).empty());
}

TEST_CASE("a plan says which forms of ZeRO++ are in effect", "[plan]") {
  struct Row {
    int ranks;
    int second;
    const char* text;
  };
  constexpr Row kRows[] = {
      {1, 0, "without effect: every rank holds all states"},
      {2, 0, "parameters travel as int8 (qwZ); gradients travel as int4 between all 2 ranks (qgZ)"},
      {2, 2,
       "parameters travel as int8 (qwZ); backward gathers parameters among the same 2 ranks as "
       "forward (hpZ has no effect); gradients travel as they are (qgZ has no effect): codes go "
       "between groups of parallel.zero.second_shard: 2 ranks, and 2 share the states; with "
       "second_shard: 0 they go between all"},
      {4, 2,
       "parameters travel as int8 (qwZ); backward gathers parameters among 2 ranks (hpZ); "
       "gradients travel as int4 between groups of 2 ranks (qgZ)"}};
  ModelCost cost = test::small_model_cost(4);
  for (GroupCost& group : cost.groups) group.leading_matrices = 1;
  Recipe r;
  r.batch = {.global = 96, .micro = 8};
  r.precision.gather = GatherType::int8;
  r.precision.reduce = ReduceType::int4;
  for (const Row& row : kRows) {
    CAPTURE(row.ranks, row.second);
    r.parallel.zero = {.stage = 3, .second_shard = row.ranks == 1 ? 0 : row.second};
    const Strategy strategy = make_strategy(r, cost, row.ranks, cpu());
    const PlanReport plan = make_plan("zeropp", r, strategy, cost, cpu());
    CHECK(plan.wires == row.text);
    CHECK(plan_text(plan, strategy, cost).find(row.text) != std::string::npos);
    // What it says of gradients is what they do.
    const bool coded = std::ranges::any_of(plan.step.collectives, [](const CollectiveUse& use) {
      return use.name.find("all-to-all") != std::string::npos;
    });
    CHECK(coded == (plan.wires.find("gradients travel as int4") != std::string::npos));
  }
  Recipe plain;
  plain.batch = r.batch;
  const Strategy strategy = make_strategy(plain, cost, 2, cpu());
  CHECK(make_plan("plain", plain, strategy, cost, cpu()).wires.empty());
}

TEST_CASE("the plan says of each form whether it pays", "[plan]") {
  Recipe r;
  r.batch = {.global = 16 * 64, .micro = 64};
  r.parallel.zero = {.stage = 3, .second_shard = 8};
  r.precision.gather = GatherType::int8;
  r.precision.reduce = ReduceType::int4;
  ModelCost cost = test::vit_like_model();
  for (GroupCost& group : cost.groups) {
    std::ranges::sort(group.tensor_sizes, std::greater());
    group.leading_matrices = static_cast<int>(
        std::ranges::count_if(group.tensor_sizes, [](std::int64_t n) { return n > 4096; }));
  }
  const auto text = [&](double network) {
    Machine machine = h200();
    machine.network_bytes_per_s = network;
    const Strategy s = make_strategy(r, cost, 16, machine);
    return plan_text(make_plan("example", r, s, cost, machine), s, cost);
  };
  const std::string slow = text(1e9), fast = text(1e12);
  for (const char* form : {"int8 gathers", "int4 reductions", "second shard"}) {
    CAPTURE(form, slow, fast);
    REQUIRE(slow.find(form) != std::string::npos);
    const auto line = [&](const std::string& all) {
      const std::size_t begin = all.find(form);
      return all.substr(begin, all.find('\n', begin) - begin);
    };
    CHECK_THAT(line(slow), Catch::Contains(": pays"));
    CHECK_THAT(line(fast), Catch::Contains("does not pay"));
  }
}

}  // namespace dstrain
