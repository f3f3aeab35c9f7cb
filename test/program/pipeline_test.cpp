#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "engine/program/schedules/schedule.h"
#include "engine/program/simulate.h"
#include "test/program/models.h"
#include "test/program/soundness.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using Line = std::vector<Program>;

struct LineCase {
  Layout layout;
  ModelCost cost;
  ProgramOptions options;
};

/// `ranks` pipeline ranks of one chunk each, the first `frozen` blocks not trained.
LineCase make_line_case(int ranks, int blocks, int stage, int shard, int frozen,
                        ProgramOptions options, ScheduleName schedule = ScheduleName::one_f_one_b) {
  ModelCost cost = test::small_model_cost(blocks);
  for (int b = 0; b < frozen; ++b) cost.groups[static_cast<std::size_t>(b)].trainable = false;
  const Mesh mesh(ranks * shard, {.pipeline = ranks, .shard = shard});
  Layout layout = zero_layout(stage, mesh, cost, {});
  options.schedule =
      make_schedule(schedule, layout.stages, options.micro_batches, equal_costs(layout.stages));
  return {std::move(layout), std::move(cost), std::move(options)};
}

Line training_line(const LineCase& c) {
  Line line;
  for (int r = 0; r < c.layout.pipeline_degree(); ++r)
    line.push_back(training_program(c.layout, c.cost, c.options, r));
  return line;
}

Line evaluation_line(const LineCase& c) {
  Line line;
  for (int r = 0; r < c.layout.pipeline_degree(); ++r)
    line.push_back(evaluation_program(c.layout, c.cost, c.options, r));
  return line;
}

std::string problems(const Line& line, const LineCase& c) {
  return fmt::format("{}", fmt::join(check(line, c.layout, c.cost), "\n"));
}

void for_each_line(const std::function<void(const LineCase&)>& visit) {
  for (const int ranks : {2, 3, 4}) {
    for (const int stage : {0, 2, 3}) {
      for (const int shard : {1, 2}) {
        for (const int frozen : {0, 2}) {
          for (const int micro_batches : {1, 2, 5}) {
            for (const ScheduleName schedule : {ScheduleName::one_f_one_b, ScheduleName::gpipe}) {
              for (const bool recompute : {false, true}) {
                INFO("ranks " << ranks << " stage " << stage << " shard " << shard << " frozen "
                              << frozen << " micro-batches " << micro_batches << " schedule "
                              << static_cast<int>(schedule) << " recompute " << recompute);
                visit(make_line_case(ranks, 5, stage, shard, frozen,
                                     {.micro_batches = micro_batches,
                                      .prefetch = 1,
                                      .recompute = test::recomputed(recompute)},
                                     schedule));
              }
            }
          }
        }
      }
    }
  }
}

/// Buffers of the role that belong to `block`.
std::size_t buffers(const Program& program, BufferRole role, int block) {
  return static_cast<std::size_t>(std::ranges::count_if(
      program.buffers, [&](const Buffer& b) { return b.role == role && b.owner == block; }));
}

TEST_CASE("every line of programs is sound", "[program][pipeline][property]") {
  int lines = 0;
  for_each_line([&](const LineCase& c) {
    ++lines;
    const Line line = training_line(c);
    for (const Program& program : line) test::require_operands(program, c.cost);
    const std::string training = problems(line, c);
    if (!training.empty()) FAIL(training);
    const std::string evaluation = problems(evaluation_line(c), c);
    if (!evaluation.empty()) FAIL(evaluation);
  });
  CHECK(lines == 432);
}

TEST_CASE("no wait of any line can be left out", "[program][pipeline][property]") {
  std::size_t removed = 0;
  for_each_line([&](const LineCase& c) {
    if (c.layout.stages.ranks() == 4) return;  // as 3, only slower
    Line line = training_line(c);
    for (Program& program : line) {
      for (std::size_t i = 0; i < program.actions.size(); ++i) {
        for (std::vector<int> Action::*waits : {&Action::after, &Action::after_previous}) {
          const std::vector<int> after = program.actions[i].*waits;
          for (std::size_t edge = 0; edge < after.size(); ++edge) {
            (program.actions[i].*waits)
                .erase((program.actions[i].*waits).begin() + static_cast<std::ptrdiff_t>(edge));
            if (check(program, c.layout, c.cost).empty()) {
              FAIL(fmt::format(
                  "coordinate {}: #{} {} need not wait for #{} {}{}", program.coordinate, i,
                  describe(program.actions[i], c.cost), after[edge],
                  describe(program.actions[static_cast<std::size_t>(after[edge])], c.cost),
                  waits == &Action::after ? "" : " of the run before"));
            }
            program.actions[i].*waits = after;
            ++removed;
          }
        }
      }
    }
  });
  CHECK(removed > 5000);
}

TEST_CASE("a transfer that is left out, exchanged or turned round is reported",
          "[program][pipeline][property]") {
  const LineCase c = make_line_case(3, 5, 0, 1, 0, {.micro_batches = 4});
  const Line line = training_line(c);
  int broken = 0;
  for (std::size_t r = 0; r < line.size(); ++r) {
    for (std::size_t i = 0; i < line[r].actions.size(); ++i) {
      if (!transfers(line[r].actions[i].kind)) continue;
      CAPTURE(r, i, describe(line[r].actions[i], c.cost));
      const auto mutated = [&](const std::function<void(Program&)>& mutate) {
        Line copy = line;
        mutate(copy[r]);
        return !check(copy, c.layout, c.cost).empty();
      };
      const auto action = [i](Program& p) -> Action& { return p.actions[i]; };
      CHECK(mutated([&](Program& p) { action(p).micro_batch = (action(p).micro_batch + 1) % 4; }));
      CHECK(mutated([&](Program& p) { action(p).block = action(p).block == 0 ? 1 : 0; }));
      CHECK(mutated([&](Program& p) { action(p).comm.front().peer = p.coordinate; }));
      CHECK(mutated([&](Program& p) { ++action(p).comm.front().bytes; }));
      CHECK(mutated([&](Program& p) {
        using enum Lane;
        Lane& lane = action(p).lane;
        lane = lane == send_down    ? send_up
               : lane == send_up    ? send_down
               : lane == receive_up ? receive_down
                                    : receive_up;
      }));
      // The next one of its lane takes its place, on this rank only.
      const auto next =
          std::ranges::find(line[r].actions.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                            line[r].actions.end(), line[r].actions[i].lane, &Action::lane);
      if (next != line[r].actions.end()) {
        CHECK(mutated([&](Program& p) {
          std::swap(
              action(p).micro_batch,
              p.actions[static_cast<std::size_t>(next - line[r].actions.begin())].micro_batch);
        }));
      }
      ++broken;
    }
  }
  CHECK(broken == 2 * 2 * 2 * 4);  // boundaries x directions x ends x micro-batches
}

TEST_CASE("ranks that would wait for each other for ever are named", "[program][pipeline]") {
  LineCase c = make_line_case(2, 4, 0, 1, 0, {.micro_batches = 3});
  // The first rank wants a gradient before its third forward, the second that forward before any
  // backward.
  Line line = {training_program(c.layout, c.cost, c.options, 0)};
  c.options.schedule = gpipe(c.layout.stages, c.options.micro_batches);
  line.push_back(training_program(c.layout, c.cost, c.options, 1));
  const std::string text = problems(line, c);
  CAPTURE(text);
  CHECK(text.starts_with("the ranks wait for each other: "));
  CHECK(text.find("receive(block1), micro-batch 0 of coordinate 0") != std::string::npos);
  CHECK(text.find("receive(block1), micro-batch 2 of coordinate 1") != std::string::npos);
}

TEST_CASE("programs of another cut or order are not a line", "[program][pipeline]") {
  const LineCase c = make_line_case(2, 4, 0, 1, 0, {.micro_batches = 2});
  LineCase other = c;
  other.layout.stages.first_block = {0, 1};
  Line line = training_line(c);
  CHECK(problems(line, c) == "");
  CHECK(problems(line, other) != "");
  CHECK(hash(line, c.layout) != hash(training_line(other), other.layout));
  std::swap(line[0], line[1]);
  CHECK(problems(line, c) ==
        "the program of coordinate 1 stands at 0\n"
        "the program of coordinate 0 stands at 1");
  line.pop_back();
  CHECK(problems(line, c).starts_with("1 programs for 2 coordinates of the pipeline"));
}

TEST_CASE("a rank holds the activations of as many micro-batches as its schedule has under way",
          "[program][pipeline]") {
  for (const ScheduleName schedule : {ScheduleName::one_f_one_b, ScheduleName::gpipe}) {
    const LineCase c = make_line_case(4, 8, 0, 1, 0, {.micro_batches = 7}, schedule);
    const Line line = training_line(c);
    for (int r = 0; r < 4; ++r) {
      const Program& program = line[static_cast<std::size_t>(r)];
      const bool gpipe_schedule = schedule == ScheduleName::gpipe;
      const std::size_t under_way = gpipe_schedule ? 7 : static_cast<std::size_t>(4 - r);
      CAPTURE(r, static_cast<int>(schedule));
      CHECK(buffers(program, BufferRole::saved, 2 * r) == under_way);
      CHECK(program.buffers_of(BufferRole::batch).size() == under_way + 1);
      CHECK(test::count(program, ActionKind::forward) == 2 * 7);
      CHECK(test::count(program, ActionKind::backward) == 2 * 7);
      CHECK(program.buffers_of(BufferRole::parameters).size() == 2);
    }
    // Frozen blocks in front ask for no gradient.
    const LineCase frozen = make_line_case(4, 8, 0, 1, 4, {.micro_batches = 7});
    const Line part = training_line(frozen);
    CHECK(test::count(part[0], ActionKind::backward) == 0);
    CHECK(std::ranges::count(part[1].actions, Lane::receive_up, &Action::lane) == 0);
    CHECK(std::ranges::count(part[2].actions, Lane::send_up, &Action::lane) == 0);
    CHECK(std::ranges::count(part[3].actions, Lane::send_up, &Action::lane) == 7);
  }
}

TEST_CASE("a rank with two chunks hands on what stays on it without a transfer",
          "[program][pipeline]") {
  // V placement: the second rank has the two middle chunks.
  LineCase c = make_line_case(2, 4, 3, 2, 0, {});
  set_stages(c.layout, c.cost, {.first_block = {0, 1, 2, 3}, .rank = {0, 1, 1, 0}});
  const Line line = evaluation_line(c);
  CHECK(problems(line, c) == "");
  CHECK(std::ranges::count(line[0].actions, Lane::send_down, &Action::lane) == 1);
  CHECK(std::ranges::count(line[0].actions, Lane::receive_down, &Action::lane) ==
        1);  // of two ranks each follows the other
  CHECK(test::count(line[1], ActionKind::forward) == 2);
}

}  // namespace
}  // namespace dstrain
