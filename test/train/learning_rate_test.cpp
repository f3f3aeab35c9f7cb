#include "engine/train/session/learning_rate.h"

#include <algorithm>
#include <cmath>

#include "test/support/catch.h"

namespace dstrain {
namespace {

/// lr 1, with a warm-up of 10 steps, and a final ratio of 0.1.
OptimizerConfig config_of(Schedule schedule) {
  OptimizerConfig config;
  config.lr = 1.0;
  config.warmup_steps = 10;
  config.final_lr_ratio = 0.1;
  config.schedule = schedule;
  return config;
}

constexpr ScheduleSpan kSpan = {.steps = 110, .steps_per_epoch = 20};

}  // namespace

TEST_CASE("the learning rate warms up linearly, then follows its schedule to the final ratio",
          "[train]") {
  const OptimizerConfig cosine = config_of(Schedule::cosine);
  CHECK(learning_rate(cosine, 0, kSpan) == Approx(0.1));
  CHECK(learning_rate(cosine, 9, kSpan) == Approx(1.0));
  CHECK(learning_rate(cosine, 10, kSpan) == Approx(1.0));
  CHECK(learning_rate(cosine, 60, kSpan) == Approx(0.55));
  CHECK(learning_rate(cosine, 110, kSpan) == Approx(0.1));

  const OptimizerConfig linear = config_of(Schedule::linear);
  CHECK(learning_rate(linear, 35, kSpan) == Approx(0.775));
  CHECK(learning_rate(linear, 110, kSpan) == Approx(0.1));

  CHECK(learning_rate(config_of(Schedule::constant), 109, kSpan) == 1.0);
}

TEST_CASE("each shift and course of the warm-up follows its formula for 1,000 steps", "[train]") {
  const int shift = GENERATE(-1, 0, 1), steps = GENERATE(2, 7, 400);
  const Warmup course = GENERATE(Warmup::linear, Warmup::log);
  const double start = GENERATE(0.0, 0.25);
  CAPTURE(shift, steps, start, static_cast<int>(course));
  OptimizerConfig config = config_of(Schedule::constant);
  config.warmup_steps = steps;
  config.warmup_shift = shift;
  config.warmup_ratio = start;
  config.warmup = course;
  for (int step = 0; step < 1000; ++step) {
    const double position = std::max(0, step + shift);
    const double rise =
        course == Warmup::linear ? position / steps : std::log(position + 1) / std::log(steps);
    CAPTURE(step);
    REQUIRE(learning_rate(config, step, kSpan) ==
            Approx(start + (1 - start) * std::min(1.0, rise)).epsilon(1e-12));
  }
}

TEST_CASE("a shift of -1 moves the line, not the cosine", "[train]") {
  const int shift = GENERATE(-1, 0, 1);
  OptimizerConfig config = config_of(Schedule::linear);
  config.warmup_shift = shift;
  const double lag = shift < 0 ? 1 : 0;
  for (int step = 20; step < 200; ++step) {
    CAPTURE(shift, step);
    const double done = std::min(1.0, (step - lag - 10) / 100);
    config.schedule = Schedule::linear;
    REQUIRE(learning_rate(config, step, kSpan) == Approx(0.1 + 0.9 * (1 - done)));
    config.schedule = Schedule::cosine;
    const double turn = std::min(1.0, (step - 10) / 100.0);
    REQUIRE(learning_rate(config, step, kSpan) ==
            Approx(0.1 + 0.9 * (1 + std::cos(3.14159265358979 * turn)) / 2));
  }
}

TEST_CASE("a decay may end before the run, and stays where it ended", "[train]") {
  OptimizerConfig config = config_of(GENERATE(Schedule::linear, Schedule::cosine));
  config.decay_steps = 60;
  CHECK(learning_rate(config, 35, kSpan) == Approx(0.55));
  for (const int step : {60, 61, 109, 1000})
    CHECK(learning_rate(config, step, kSpan) == Approx(0.1));
}

TEST_CASE("schedule step drops after whole intervals, also of parts of an epoch", "[train]") {
  OptimizerConfig config = config_of(Schedule::step);
  config.warmup_steps = 0;
  config.step_factor = 0.5;
  // Steps of an interval, in epochs of 20: 48, 3 (0.15 x 20 is a little more in double), 0.5.
  const auto [epochs, interval] =
      GENERATE(std::pair(2.4, 48.0), std::pair(0.15, 3.0), std::pair(0.025, 0.5));
  config.step_epochs = epochs;
  for (int step = 0; step < 1000; ++step) {
    CAPTURE(epochs, step);
    REQUIRE(learning_rate(config, step, kSpan) == std::pow(0.5, std::floor(step / interval)));
  }
  config.warmup_steps = 10;
  config.step_epochs = 0.25;
  CHECK(learning_rate(config, 4, kSpan) == Approx(0.5));  // the warm-up knows nothing of drops
  CHECK(learning_rate(config, 12, kSpan) == Approx(0.25));
}

}  // namespace dstrain
