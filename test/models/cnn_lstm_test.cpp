#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/models/weights.h"
#include "engine/nn/block_state.h"
#include "test/models/bind.h"
#include "test/models/live_bytes.h"
#include "test/models/norm_bytes.h"
#include "test/models/run_blocks.h"
#include "test/support/catch.h"

// CNN-LSTM: costs, fillers, mistakes. Its numbers are held against PyTorch's by torchvision_cnn.py.

namespace dstrain {
namespace {

constexpr std::int64_t kFrames = 3, kClipClasses = 5, kSide = 20;

ModelConfig clip_config() {
  ModelConfig config;
  config.name = "cnn-lstm";
  config.trunk = "cnn-basic";
  config.image_size = kSide;
  config.classes = kClipClasses;
  config.width = 12;
  config.layers = 2;
  return config;
}

Model clip_model() {
  Model model = make_model(clip_config(), {.frames = kFrames});
  test::bind_parameters(model, *make_random_weights(1));
  for (BlockState* state : all_states(model)) {
    state->value = at::full(state->part.shape, state->initial, state->type);
    if (state->change == StateChange::step_mean) state->step_sum = at::zeros(state->part.shape);
  }
  return model;
}

Batch clips(const at::Tensor& images) {
  const std::int64_t samples = images.size(0) / kFrames;
  return {.images = images,
          .labels = at::arange(samples, at::kLong).remainder(kClipClasses),
          .weights = at::ones({samples})};
}

TEST_CASE("every block of a CNN-LSTM keeps exactly the bytes that its cost states",
          "[models][cost][cnn]") {
  constexpr std::int64_t kSamples = 4;
  const Model model = clip_model();
  CHECK(model.frames == kFrames);
  const Batch batch = clips(at::randn({kSamples * kFrames, 3, kSide, kSide}));
  const BlockContext context{.totals = at::zeros({kNumTotals})};
  Tensors before;
  std::int64_t parameters = 0;
  for (const auto& block : model.blocks) {
    CAPTURE(block->name());
    const BlockCost cost = block->cost({.micro_batch = kSamples, .compute_bytes = 4});
    test::LiveBytes memory;
    const std::int64_t start = memory.live();
    test::BlockRun run = test::run_forward(*block, before, batch, context);
    const Bytes kept = memory.live() - start;
    CHECK(kept + test::norm_bytes_of_gpu(*block) == cost.saved_bytes + cost.boundary_bytes());
    REQUIRE(run.output.size() == cost.boundary.size());
    CHECK(run.output[0].sizes() == at::IntArrayRef(cost.boundary[0].shape));
    parameters += total(cost.layers).parameters;
    before = {run.output[0].detach()};
  }
  std::int64_t expected = 0;
  for (const Parameter* parameter : all_parameters(model)) expected += parameter->numel();
  CHECK(parameters == expected);
}

TEST_CASE("clips that are fillers change nothing", "[models][cnn]") {
  constexpr std::int64_t kValid = 4, kFillers = 2;
  const at::Tensor images = at::randn({kValid * kFrames, 3, kSide, kSide});
  const auto run = [&](bool filled) {
    Model model = clip_model();
    Batch batch = clips(images);
    if (filled) {
      at::Tensor more = at::full({(kValid + kFillers) * kFrames, 3, kSide, kSide}, 9.0);
      more.narrow(0, 0, kValid * kFrames).copy_(images);
      batch = clips(more);
      batch.weights.narrow(0, kValid, kFillers).zero_();
      batch.valid = at::full({}, kValid, at::kInt);
    }
    (void)test::run_model(model.blocks, batch, {.totals = at::zeros({kNumTotals})}, at::ones({}));
    auto found = test::part_values(model, &Parameter::gradient);
    for (const BlockState* state : all_states(model)) {
      if (state->change != StateChange::step_mean) continue;
      const std::span<float> values = test::floats(state->step_sum);
      found[state->part.name] = {values.begin(), values.end()};
    }
    return found;
  };
  const auto expected = run(false), found = run(true);
  CHECK(expected.contains("trunk.stage1.norm.running_mean"));
  CHECK(expected.contains("lstm.weight_hh_l1"));
  for (const auto& [name, values] : expected) {
    CAPTURE(name);
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{found.at(name)[i]} - values[i], 2);
      size += std::pow(double{values[i]}, 2);
    }
    CHECK(size > 0);
    CHECK(std::sqrt(difference) <= 2e-4 * std::sqrt(size) + 1e-6);
  }
}

TEST_CASE("a trunk that is no convolutional model is refused", "[models][cnn]") {
  ModelConfig config = clip_config();
  config.trunk = GENERATE("vit-base", "ensemble", "cnn-lstm", "alexnet");
  CHECK_THROWS_WITH(make_model(config, {.frames = kFrames}),
                    "model.trunk: '" + config.trunk +
                        "' is no convolutional model that dstrain knows");
}

}  // namespace
}  // namespace dstrain
