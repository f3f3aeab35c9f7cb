#include "engine/train/measure/step_timer.h"

#include <chrono>
#include <thread>

#include "engine/base/index.h"
#include "test/program/models.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

void work_for(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

}  // namespace

TEST_CASE("a step's time is divided among its phases, lanes and waits", "[train][timer]") {
  const c10::Device cpu(c10::kCPU);
  const Stream stream(cpu);
  RankRecordFile record = RankRecordFile::anonymous();
  StepTimer timer(cpu, 1, record);
  timer.begin(7, stream);
  timer.begin_action(Lane::gather, stream);
  work_for(4);
  timer.end_action(Lane::gather, /*communicates=*/true, stream);
  timer.enter(Phase::forward, stream);
  work_for(8);
  timer.enter(Phase::backward, stream);
  work_for(16);
  timer.begin_action(Lane::copy_in, stream);
  work_for(2);
  timer.end_action(Lane::copy_in, /*communicates=*/false, stream);
  timer.enter(Phase::forward, stream);
  work_for(8);
  timer.enter(Phase::norm, stream);
  timer.begin_action(Lane::compute, stream);
  work_for(3);
  timer.end_action(Lane::compute, /*communicates=*/true, stream);
  timer.enter(Phase::update, stream);
  timer.end(stream);
  CHECK(!timer.take(6));
  const auto times = timer.take(7);
  REQUIRE(times);
  CHECK(!timer.take(7));
  // A sleep is never shorter than asked for.
  CHECK(times->of(Phase::forward) >= 0.020);
  CHECK(times->of(Phase::backward) >= 0.018);
  CHECK(times->of(Phase::norm) >= 0.003);
  CHECK(times->wait(Lane::gather) >= 0.004);
  CHECK(times->wait(Lane::copy_in) >= 0.002);
  CHECK(times->lane_s.at(static_cast<std::size_t>(Lane::gather)) == times->wait(Lane::gather));
  CHECK(times->wait(Lane::compute) == 0);
  CHECK(times->exposed_comm_s >= 0.007);
  CHECK(times->exposed_comm_s < times->wait(Lane::gather) + times->of(Phase::norm));
  CHECK(record.get().steps.load() == 1);
}

TEST_CASE("only every k-th step is timed, and none where nobody asks", "[train][timer]") {
  const c10::Device cpu(c10::kCPU);
  const Stream stream(cpu);
  RankRecordFile record = RankRecordFile::anonymous();
  const int every = GENERATE(0, 1, 3);
  StepTimer timer(cpu, every, record);
  int timed = 0;
  for (int step = 0; step < 9; ++step) {
    timer.begin(step, stream);
    timer.enter(Phase::backward, stream);
    timer.end(stream);
    const bool has = timer.take(step).has_value();
    CHECK(has == (every > 0 && step % every == 0));
    timed += has ? 1 : 0;
  }
  CHECK(timed == (every == 0 ? 0 : 9 / every));
}

TEST_CASE("the more events and the shorter a step, the fewer steps are timed", "[train][timer]") {
  const test::Case few = test::make_case(0, 1, 1, 2, {.micro_batches = 1, .prefetch = 1});
  const test::Case many = test::make_case(3, 2, 1, 12, {.micro_batches = 4, .prefetch = 1});
  const Program a = training_program(few.layout, few.cost, few.options);
  const Program b = training_program(many.layout, many.cost, many.options);
  CHECK(timing_interval(a, 1) == 4);
  CHECK(timing_interval(a, 0) == 4);
  CHECK(timing_interval(b, 0.003) > timing_interval(a, 0.003));
  CHECK(timing_interval(b, 0.003) > timing_interval(b, 0.3));
}

TEST_CASE("each action has the phase that it stands in or serves", "[train][timer]") {
  const int stage = GENERATE(0, 2, 3), micro_batches = GENERATE(1, 3);
  const test::Case c = test::make_case(
      stage, 2, 1, 4,
      {.micro_batches = micro_batches, .prefetch = 1, .recompute = test::recomputed(true)});
  const Program program = training_program(c.layout, c.cost, c.options);
  const std::vector<Phase> all = phases(program);
  CAPTURE(stage, micro_batches);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Action& action = program.actions[i];
    CAPTURE(i, action_name(action.kind));
    if (const auto own = kind_row(action.kind).phase) CHECK(all[i] == *own);
    if (action.kind == ActionKind::reduce) CHECK(all[i] == Phase::backward);
    if (action.kind == ActionKind::load) CHECK(all[i] == Phase::forward);
    if (action.kind != ActionKind::gather) continue;
    // The first that waits for it.
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      const auto& after = program.actions[j].after;
      if (program.actions[j].lane != Lane::compute ||
          std::ranges::find(after, static_cast<int>(i)) == after.end())
        continue;
      CHECK(all[i] == all[j]);
      break;
    }
  }
}

}  // namespace dstrain
