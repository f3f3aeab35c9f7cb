#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/recipe/load.h"
#include "engine/train/session/learning_rate.h"

/// learning_rate_probe STEPS COUNT KEY=VALUE...: prints the learning rates of the first COUNT steps of a
/// run of STEPS steps under the quickstart recipe with these overrides, one a line.
int main(int argc, char** argv) {
  if (argc < 3) return 64;
  const std::vector<std::string> overrides(argv + 3, argv + argc);
  const dstrain::Recipe recipe = dstrain::load_recipe("recipes/quickstart.yaml", overrides).recipe;
  const dstrain::ScheduleSpan span{.steps = std::atoll(argv[1]), .steps_per_epoch = 10};
  for (long step = 0; step < std::atol(argv[2]); ++step)
    fmt::print("{}\n", dstrain::learning_rate(recipe.optimizer, step, span));
  return 0;
}
