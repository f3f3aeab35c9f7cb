#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/train/state_store.h"
#include "recipes/schema/recipe.h"

namespace dstrain {

struct UpdaterOptions {
  OptimizerConfig optimizer;
  at::ScalarType compute = at::kFloat;
  std::int64_t seed = 0;  ///< of the run
};

/// The optimizer on what this rank owns of each group.
class Updater {
 public:
  Updater(StateStore& states, UpdaterOptions options)
      : states_(states), options_(std::move(options)) {}

  /// Enqueues the update of a group by its gradient; `control` is StepControl on the device.
  void update(int group, double lr, const at::Tensor& control);

 private:
  StateStore& states_;
  UpdaterOptions options_;
};

}  // namespace dstrain
