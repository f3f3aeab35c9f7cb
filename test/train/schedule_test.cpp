#include "engine/train/schedule.h"

#include "test/support/catch.h"

using namespace dstrain;

TEST_CASE("the learning rate warms up linearly, then follows its schedule to the final ratio",
          "[train]") {
  OptimizerConfig config;
  config.lr = 1.0;
  config.warmup_steps = 10;
  config.final_lr_ratio = 0.1;

  config.schedule = Schedule::cosine;
  CHECK(learning_rate(config, 0, 110) == Approx(0.1));
  CHECK(learning_rate(config, 9, 110) == Approx(1.0));
  CHECK(learning_rate(config, 10, 110) == Approx(1.0));
  CHECK(learning_rate(config, 60, 110) == Approx(0.55));
  CHECK(learning_rate(config, 110, 110) == Approx(0.1));

  config.schedule = Schedule::linear;
  CHECK(learning_rate(config, 35, 110) == Approx(0.775));
  CHECK(learning_rate(config, 110, 110) == Approx(0.1));

  config.schedule = Schedule::constant;
  CHECK(learning_rate(config, 109, 110) == 1.0);
}
