#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <chrono>

#include "engine/device/device.h"
#include "engine/recipe/load.h"
#include "engine/train/measure/step_timer.h"
#include "engine/train/session/session.h"
#include "test/support/catch.h"

using namespace dstrain;

TEST_CASE("the times of steps add up to the wall clock under accumulation", "[gpu][train]") {
  using Clock = std::chrono::steady_clock;
  // 1: forward and backward are a CUDA graph. 8: more kernels than the launch queue takes.
  const int micro_batches = GENERATE(1, 8);
  CAPTURE(micro_batches);
  const Recipe recipe =
      load_recipe("recipes/vit/vit-base_random_ddp.yaml",
                  {"batch.micro=32", "run.epochs=0", "run.steps=60", "run.evaluate=epoch",
                   "data.samples=10000", "batch.global=" + std::to_string(32 * micro_batches)})
          .recipe;
  const World world = single_world(choose_device(0));
  RankRecordFile record = RankRecordFile::anonymous();
  Session session(recipe, world, record);
  session.seek(0);
  Executor& executor = session.executor();
  const auto drain = [&] {
    while (executor.pending() > 0) (void)executor.take_outcome();
  };
  for (int i = 0; i < 8; ++i) session.enqueue_step();
  drain();

  double steps_s = 0;
  double last_s = 0;
  double wall_s = 0;
  for (int part = 0; part < 2; ++part) {
    const auto begin = Clock::now();
    for (int i = 0; i < 20; ++i) {
      session.enqueue_step();
      if (executor.pending() > 1) steps_s += executor.take_outcome().step_s;
    }
    last_s = executor.take_outcome().step_s;
    steps_s += last_s;
    wall_s += std::chrono::duration<double>(Clock::now() - begin).count();
    (void)session.evaluate();  // whose time is no step's
  }
  CHECK(steps_s == Approx(wall_s).epsilon(0.01));
  // So is the last one before the queue was empty; steps differ by what they wait for data.
  CHECK(last_s > 0.5 * steps_s / 40);
}

TEST_CASE("an action that ends after its step is timed to its end", "[gpu][train]") {
  const c10::Device device = choose_device(0).device;
  const Stream compute = Stream::from_pool(device);
  const Stream gather = Stream::from_pool(device);
  RankRecordFile record = RankRecordFile::anonymous();
  StepTimer timer(device, 1, record);
  const at::Tensor a = at::ones({8192, 8192}, at::device(device).dtype(at::kBFloat16));
  at::Tensor product = at::empty_like(a);
  synchronize(device);
  timer.begin(0, compute);
  timer.begin_action(Lane::gather, gather);
  {
    const StreamScope scope(gather);
    for (int i = 0; i < 30; ++i) at::mm_out(product, a, a);
  }
  timer.end_action(Lane::gather, /*communicates=*/true, gather);
  timer.enter(Phase::update, compute);
  timer.end(compute);
  compute.synchronize();
  REQUIRE(!gather.query());  // else this tests nothing
  const auto times = timer.take(0);
  REQUIRE(times);
  CHECK(gather.query());
  double step_s = 0;
  for (const double seconds : times->phase_s) step_s += seconds;
  CHECK(times->lane_s.at(static_cast<std::size_t>(Lane::gather)) > step_s);
}
