#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "engine/models/vit/model.h"
#include "engine/models/weights.h"
#include "test/models/bind.h"
#include "test/models/run_blocks.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"

namespace dstrain {
namespace {

using Values = std::map<std::string, std::vector<float>>;

struct VitResult {
  float loss = 0;
  Values gradients;
  std::vector<float> totals;
};

/// Loss and gradients of the small model on these batches, one after the other.
VitResult run(const std::vector<Batch>& batches) {
  Model model = test::small_model(3);
  test::bind_parameters(model, *make_random_weights(4));
  const BlockContext context{.label_smoothing = 0.1, .totals = at::zeros({kNumTotals})};
  VitResult result;
  for (const Batch& batch : batches) {
    result.loss += test::run_model(model.blocks, batch, context, at::ones({})).item<float>();
  }
  result.gradients = test::part_values(model, &Parameter::gradient);
  const auto totals = test::floats(context.totals);
  result.totals = {totals.begin(), totals.end()};
  return result;
}

Batch batch_of(std::int64_t size, float weight) {
  return {.images = at::randn({size, 3, 8, 8}),
          .labels = at::ones({size}, at::kLong),
          .weights = at::full({size}, weight)};
}

Batch joined_images(const Batch& a, const Batch& b) {
  return {.images = at::cat({a.images, b.images}),
          .labels = at::cat({a.labels, b.labels}),
          .weights = at::cat({a.weights, b.weights})};
}

TEST_CASE("two micro-batches add up to one batch of both", "[models]") {
  const Batch a = batch_of(2, 1), b = batch_of(3, 1);
  const VitResult apart = run({a, b}), together = run({joined_images(a, b)});
  CHECK(apart.loss == Approx(together.loss).epsilon(test::kPromised));
  CHECK(test::worst_difference(apart.gradients, together.gradients) < test::kPromised);
  CHECK(together.totals[3] == 5);
  CHECK(test::worst_difference(together.gradients, run({a}).gradients) > 1e-2);
}

TEST_CASE("a sample of weight zero adds nothing", "[models]") {
  const Batch a = batch_of(2, 1);
  const VitResult alone = run({a}), filled = run({joined_images(a, batch_of(3, 0))});
  CHECK(alone.loss == Approx(filled.loss).epsilon(test::kPromised));
  CHECK(alone.totals[3] == filled.totals[3]);
  CHECK(test::worst_difference(alone.gradients, filled.gradients) < test::kPromised);
}

TEST_CASE("every parameter of a model gets a gradient", "[models]") {
  const Values gradients = run({batch_of(4, 1)}).gradients;
  CHECK(gradients.size() == 2 + 2 + 2 * 16 + 4);
  for (const auto& [name, values] : gradients) {
    CAPTURE(name);
    const bool none =
        std::all_of(values.begin(), values.end(), [](float value) { return value == 0; });
    CHECK_FALSE(none);
  }
}

}  // namespace
}  // namespace dstrain
