#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>

#include "engine/program/program.h"
#include "engine/program/schedules/visit_times.h"
#include "test/program/models.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using Name = ScheduleName;

/// Chunks of a rank, and their order, as the schedule asks for them.
Stages stages_of(ScheduleName name, int ranks, int per_rank, ChunkOrder order, int blocks) {
  if (name == Name::gpipe || name == Name::one_f_one_b) return even_stages(blocks, ranks);
  if (name == Name::dual_pipe_v) return even_stages(blocks, chunk_ranks(ranks, 2, ChunkOrder::v));
  if (name == Name::interleaved) order = ChunkOrder::loop;
  return even_stages(blocks, chunk_ranks(ranks, per_rank, order));
}

double lost(ScheduleName name, const Stages& stages, int micro_batches, const LineCost& cost) {
  const PipelineSchedule schedule = make_schedule(name, stages, micro_batches, cost);
  return time_visits(schedule, stages, cost).lost(cost, micro_batches);
}

/// What a test draws.
struct Draw {
  std::mt19937 random;
  int from(int min, int max) { return std::uniform_int_distribution<int>(min, max)(random); }
  double real(double min, double max) {
    return std::uniform_real_distribution<double>(min, max)(random);
  }
};

LineCost drawn_costs(Draw& draw, const Stages& stages) {
  LineCost cost{.chunks = {}, .transfer = draw.real(0, 2), .limits = {}};
  for (int c = 0; c < stages.chunks(); ++c) {
    const double held = draw.real(0.1, 2);
    cost.chunks.push_back({.forward = draw.real(0, 2),
                           .input = draw.real(0.1, 3),
                           .weight = draw.from(0, 3) == 0 ? 0 : draw.real(0.1, 2),
                           .held = held,
                           .later = draw.real(0, held)});
  }
  if (draw.from(0, 1) == 0) return cost;
  for (int r = 0; r < stages.ranks(); ++r) cost.limits.push_back(draw.real(0, 8));
  return cost;
}

/// Some blocks split their backward, some have frozen weights or are computed again.
test::Case drawn_model(Draw& draw, const Stages& stages, int blocks, int micro_batches) {
  ModelCost cost = test::small_model_cost(blocks);
  for (BlockCost& block : cost.blocks) {
    if (draw.from(0, 3) == 0) continue;
    block.held_bytes = 500;
    block.weight_flops = block.forward_flops;
  }
  const int frozen = draw.from(0, 2) == 0 ? draw.from(0, blocks - 1) : 0;
  for (int b = 0; b < frozen; ++b) cost.groups[static_cast<std::size_t>(b)].trainable = false;
  const int shard = draw.from(1, 2), ranks = stages.ranks();
  const Mesh mesh(ranks * shard, {.pipeline = ranks, .shard = shard});
  Layout layout = zero_layout(draw.from(0, 3), mesh, cost, {});
  set_stages(layout, cost, stages);
  ProgramOptions options = {.micro_batches = micro_batches, .prefetch = draw.from(0, 2)};
  for (int b = 0; b < blocks; ++b) options.recompute.push_back(draw.from(0, 2) == 0);
  return {std::move(layout), std::move(cost), std::move(options)};
}

std::vector<Program> line_of(const test::Case& c) {
  std::vector<Program> line;
  for (int r = 0; r < c.layout.pipeline_degree(); ++r)
    line.push_back(training_program(c.layout, c.cost, c.options, r));
  return line;
}

TEST_CASE("chunks of equal cost lose what the formulas say", "[program][schedule]") {
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : {p, 2 * p, 16 * p}) {
      CAPTURE(p, m);
      const Stages linear = even_stages(p, p);
      const LineCost joined = equal_costs(linear, false), split = equal_costs(linear);
      const auto bubble = [&](int v) { return (p - 1.0) / (v * m + p - 1); };
      CHECK(lost(Name::gpipe, linear, m, joined) == Approx(bubble(1)).margin(1e-12));
      CHECK(lost(Name::one_f_one_b, linear, m, joined) == Approx(bubble(1)).margin(1e-12));
      for (const int v : {2, 4}) {
        const Stages loop = even_stages(v * p, chunk_ranks(p, v, ChunkOrder::loop));
        CHECK(lost(Name::interleaved, loop, m, equal_costs(loop, false)) ==
              Approx(bubble(v)).margin(1e-12));
      }
      if (m < 2 * p) continue;
      // (p - 1) (F + B - W) beside m (F + B + W).
      LineCost limited = split;
      limited.limits.assign(static_cast<std::size_t>(p), p + 2);
      CHECK(lost(Name::zero_bubble, linear, m, limited) ==
            Approx((p - 1.0) / (3 * m + p - 1)).margin(1e-12));
      // (p - 1) F / 2, of chunks of half a stage.
      const Stages v = even_stages(2 * p, chunk_ranks(p, 2, ChunkOrder::v));
      LineCost halves = equal_costs(v);
      halves.limits.assign(static_cast<std::size_t>(p), 2 * (p + 1));
      CHECK(lost(Name::zero_bubble, v, m, halves) ==
            Approx((p - 1.0) / (6 * m + p - 1)).margin(1e-12));
    }
  }
}

TEST_CASE("a schedule of visits holds what its memory allows", "[program][schedule]") {
  for (const int p : {1, 2, 4, 7}) {
    for (const int m : {1, 3, 16}) {
      const Stages linear = even_stages(p, p);
      const VisitTimes times =
          time_visits(one_f_one_b(linear, m), linear, equal_costs(linear, false));
      for (int r = 0; r < p; ++r)
        CHECK(times.held[static_cast<std::size_t>(r)] == std::min(p - r, m));
      for (const ChunkOrder order : {ChunkOrder::loop, ChunkOrder::v}) {
        const Stages stages = even_stages(3 * p, chunk_ranks(p, 3, order));
        for (const double limit : {0.0, 4.0, 9.5}) {
          LineCost cost = equal_costs(stages);
          cost.limits.assign(static_cast<std::size_t>(p), limit);
          const VisitTimes limited = time_visits(zero_bubble(stages, m, cost), stages, cost);
          for (const double held : limited.held) CHECK(held <= std::max(limit, 3.0));
        }
      }
    }
  }
}

TEST_CASE("the dearest chunk of a cut costs least", "[program][schedule]") {
  CHECK(minimax_cut({1, 1, 1, 1, 1, 3}, 3) == std::vector{0, 2, 5});
  CHECK(minimax_cut({5, 1, 1}, 3) == std::vector{0, 1, 2});
  CHECK(minimax_cut({2, 2}, 1) == std::vector{0});
  CHECK_THROWS(minimax_cut({2, 2}, 3));
}

int lines_to_draw() {
  const char* wanted = std::getenv("DSTRAIN_SCHEDULES");
  return wanted == nullptr ? 10000 : std::atoi(wanted);
}

TEST_CASE("every schedule of drawn stages, costs and limits makes a sound line",
          "[program][schedule][property]") {
  // DSTRAIN_SCHEDULES: less or more of them.
  const int lines = lines_to_draw();
  for (int i = 0; i < lines; ++i) {
    Draw draw{.random = std::mt19937(static_cast<std::uint32_t>(i))};
    const auto name = static_cast<ScheduleName>(draw.from(1, 5));
    const int ranks = draw.from(2, 4), per_rank = draw.from(1, 3);
    const int chunks = ranks * std::max(per_rank, 2);
    const ChunkOrder order = draw.from(0, 1) == 0 ? ChunkOrder::loop : ChunkOrder::v;
    const int blocks = draw.from(chunks, chunks + 3);
    const int micro_batches = draw.from(name == Name::dual_pipe_v ? 2 * ranks : 1, 9);
    const Stages stages = stages_of(name, ranks, per_rank, order, blocks);
    test::Case c = drawn_model(draw, stages, blocks, micro_batches);
    c.options.schedule = make_schedule(name, stages, micro_batches, drawn_costs(draw, stages));
    const std::vector<std::string> problems = check(line_of(c), c.layout, c.cost);
    if (!problems.empty())
      FAIL(fmt::format("draw {}, schedule {}, ranks {}, blocks {}, micro-batches {}: {}", i,
                       static_cast<int>(name), ranks, blocks, micro_batches, problems.front()));
  }
  CHECK(lines > 0);
}

/// Two ranks in a V, blocks that split their backward between others that do not.
test::Case split_case() {
  ModelCost cost = test::small_model_cost(6);
  for (const std::size_t b : {1, 2, 3, 4}) {
    cost.blocks[b].held_bytes = 500;
    cost.blocks[b].weight_flops = cost.blocks[b].forward_flops;
  }
  const Mesh mesh(4, {.pipeline = 2, .shard = 2});
  Layout layout = zero_layout(1, mesh, cost, {});
  set_stages(layout, cost, even_stages(6, chunk_ranks(2, 2, ChunkOrder::v)));
  ProgramOptions options = {.micro_batches = 4, .prefetch = 1};
  options.recompute = {false, false, true, false, true, false};
  options.schedule = zero_bubble(layout.stages, options.micro_batches, equal_costs(layout.stages));
  return {std::move(layout), std::move(cost), std::move(options)};
}

TEST_CASE("a backward in two parts that is broken is reported", "[program][schedule][property]") {
  const test::Case c = split_case();
  const std::vector<Program> line = line_of(c);
  REQUIRE(fmt::format("{}", fmt::join(check(line, c.layout, c.cost), "\n")) == "");
  int tried = 0;
  for (const Program& program : line) {
    for (std::size_t i = 0; i < program.actions.size(); ++i) {
      const ActionKind kind = program.actions[i].kind;
      if (kind != ActionKind::backward_input && kind != ActionKind::backward_weight) continue;
      CAPTURE(program.coordinate, i, describe(program.actions[i], c.cost));
      const auto broken = [&](const std::function<void(Program&, Action&)>& mutate) {
        Program copy = program;
        mutate(copy, copy.actions[i]);
        return !check(copy, c.layout, c.cost).empty();
      };
      CHECK(broken([](Program&, Action& a) { a.kind = ActionKind::backward; }));
      CHECK(broken([](Program&, Action& a) { a.kind = ActionKind::release; }));
      CHECK(broken([](Program&, Action& a) { a.micro_batch = (a.micro_batch + 1) % 4; }));
      CHECK(broken([](Program&, Action& a) { a.block = a.block == 1 ? 4 : 1; }));
      CHECK(broken([](Program& p, Action& a) { p.actions.push_back(a); }));
      for (std::vector<int> Action::*ids : {&Action::reads, &Action::writes, &Action::frees}) {
        for (std::size_t k = 0; k < (program.actions[i].*ids).size(); ++k) {
          CHECK(broken([&](Program&, Action& a) {
            (a.*ids).erase((a.*ids).begin() + static_cast<std::ptrdiff_t>(k));
          }));
        }
      }
      ++tried;
    }
  }
  CHECK(tried == 2 * 4 * 4);  // parts, blocks, micro-batches
}

TEST_CASE("what is held from the first part of a backward to the second counts as an activation",
          "[program][schedule]") {
  const test::Case c = split_case();
  for (const Program& program : line_of(c)) {
    for (const int id : program.buffers_of(BufferRole::held))
      CHECK(program.buffers[static_cast<std::size_t>(id)].bytes() == 500);
    CHECK(!program.buffers_of(BufferRole::held).empty());
    Flops backward = 0, forward = 0;
    for (const Action& action : program.actions) {
      if (action.kind == ActionKind::forward)
        forward += action.flops;
      else if (runs_block(action.kind) && action.kind != ActionKind::recompute)
        backward += action.flops;
    }
    CHECK(backward == Approx(2 * forward));
  }
}

}  // namespace
}  // namespace dstrain
