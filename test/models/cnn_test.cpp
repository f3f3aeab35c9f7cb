#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/error.h"
#include "engine/models/groups.h"
#include "engine/models/random_weights.h"
#include "engine/models/weights.h"
#include "engine/nn/block_state.h"
#include "test/models/bind.h"
#include "test/models/live_bytes.h"
#include "test/models/norm_bytes.h"
#include "test/models/run_blocks.h"
#include "test/support/catch.h"

// Convolutional models: costs, fillers, recomputation, groups.

namespace dstrain {
namespace {

constexpr std::int64_t kClasses = 7;

struct Small {
  std::string name;
  int pixels;
};

Model model_of(const Small& small, Bytes bucket = 0) {
  ModelConfig config;
  config.name = small.name;
  config.image_size = small.pixels;
  config.classes = kClasses;
  config.dropout = 0;
  return make_model(config, {.bucket = bucket});
}

/// The states of all blocks, with sums of a step that are 0.
void bind_states(const Model& model) {
  for (BlockState* state : all_states(model)) {
    state->value = at::full(state->part.shape, state->initial, state->type);
    if (state->change == StateChange::step_mean) state->step_sum = at::zeros(state->part.shape);
  }
}

Batch cnn_batch(const Model& model, std::int64_t size) {
  return {.images = at::randn({size, model.channels, model.image_size, model.image_size}),
          .labels = at::arange(size, at::kLong).remainder(kClasses),
          .weights = at::ones({size})};
}

TEST_CASE("every block of a convolutional model keeps exactly the bytes that its cost states",
          "[models][cost][cnn]") {
  const Small small = GENERATE(Small{"cnn-basic", 20}, Small{"resnet18", 33}, Small{"resnet50", 32},
                               Small{"mobilenet-v2", 40}, Small{"efficientnet-b0", 40},
                               Small{"tf-efficientnet-b0", 33}, Small{"mobilenet-v3-small", 40},
                               Small{"convnext-tiny", 33});
  CAPTURE(small.name);
  Model model = model_of(small);
  test::bind_parameters(model, *make_random_weights(1));
  bind_states(model);
  const Batch batch = cnn_batch(model, 3);
  const BlockContext context{.totals = at::zeros({kNumTotals})};
  const BatchShape shape{.micro_batch = 3, .compute_bytes = 4};
  std::int64_t parameters = 0;
  Tensors before;
  for (const auto& block : model.blocks) {
    CAPTURE(block->name());
    const BlockCost cost = block->cost(shape);
    test::LiveBytes memory;
    (void)memory.take_peak();
    const std::int64_t start = memory.live();
    test::BlockRun run = test::run_forward(*block, before, batch, context);
    const Bytes kept = memory.live() - start;
    CHECK(kept + test::norm_bytes_of_gpu(*block) == cost.saved_bytes + cost.boundary_bytes());
    REQUIRE(run.output.size() == cost.boundary.size());
    CHECK(run.output[0].sizes() == at::IntArrayRef(cost.boundary[0].shape));
    CHECK(run.output[0].is_contiguous());
    CHECK(total(cost.layers).saved_bytes == cost.saved_bytes);
    parameters += total(cost.layers).parameters;
    before = {run.output[0].detach()};
  }
  std::int64_t expected = 0;
  for (const Parameter* parameter : all_parameters(model)) expected += parameter->numel();
  CHECK(parameters == expected);
}

TEST_CASE("a head of many classes and few features stays within its stated workspace",
          "[models][cost][cnn]") {
  ModelConfig config;
  config.name = "cnn-basic";
  config.image_size = 8;
  Model model = make_model(config, {.classes = 50000});
  test::bind_parameters(model, *make_random_weights(1));
  bind_states(model);
  const Batch batch = cnn_batch(model, 3);
  const BlockContext context{.totals = at::zeros({kNumTotals})};
  (void)test::run_model(model.blocks, batch, context, at::ones({}));
  Tensors before;
  for (std::size_t b = 0; b + 1 < model.blocks.size(); ++b) {
    before = test::run_forward(*model.blocks[b], before, batch, context).output;
    for (at::Tensor& tensor : before) tensor = tensor.detach();
  }
  const BlockCost cost = model.blocks.back()->cost({.micro_batch = 3, .compute_bytes = 4});
  test::LiveBytes memory;
  test::BlockRun run = test::run_forward(*model.blocks.back(), before, batch, context);
  (void)memory.take_peak();
  (void)test::run_backward(run, {at::ones({})});
  // ATen's steps on a CPU make one tensor more of the logits' size than the kernel of a GPU.
  const Bytes cpu_only = Bytes{3} * 50000 * 4;
  CHECK(memory.take_peak() <= cost.backward_workspace + cpu_only);
}

TEST_CASE("costs count the multiply-adds that are published", "[models][cost][cnn]") {
  struct Published {
    std::string name;
    double giga;  ///< multiply-adds of one image of 224 pixels, by torchvision's tables
  };
  const Published published = GENERATE(
      Published{"resnet18", 1.814}, Published{"resnet50", 4.089}, Published{"mobilenet-v2", 0.301},
      Published{"vgg16", 15.47}, Published{"vgg19-bn", 19.63}, Published{"efficientnet-b0", 0.386},
      Published{"efficientnet-b4", 4.394}, Published{"mobilenet-v3-large", 0.217},
      Published{"mobilenet-v3-small", 0.0565}, Published{"convnext-tiny", 4.456});
  CAPTURE(published.name);
  ModelConfig config;
  config.name = published.name;
  Model model = make_model(config, {.classes = 1000});
  const ModelCost cost = model_cost(model, {.micro_batch = 1, .compute_bytes = 2});
  Flops sum = 0;
  for (const BlockCost& block : cost.blocks) {
    sum += block.forward_flops;
    Bytes forward = 0, backward = 0;
    for (const KernelCost& kernel : block.forward_kernels) forward += kernel.bytes;
    for (const KernelCost& kernel : block.backward_kernels) backward += kernel.bytes;
    CHECK(forward > 0);
    CHECK(backward > forward);
  }
  CHECK(sum / 2e9 == Approx(published.giga).epsilon(2e-3));
}

TEST_CASE("fillers enter no statistic, no gradient and no count", "[models][cnn]") {
  const Small small =
      GENERATE(Small{"cnn-basic", 8}, Small{"resnet18", 64}, Small{"mobilenet-v2", 64},
               Small{"efficientnet-b0", 64}, Small{"mobilenet-v3-small", 64});
  CAPTURE(small.name);
  constexpr std::int64_t kValid = 3, kFillers = 2;
  // The bias of a norm before a convolution and its norm has no gradient but rounding.
  // EfficientNet is three times as deep, and it grows more.
  const double rounding = small.name.starts_with("efficientnet") ? 5e-5 : 1e-5;
  const auto run = [&](bool filled) {
    Model model = model_of(small);
    test::bind_parameters(model, *make_random_weights(1));
    bind_states(model);
    const at::Tensor images = [&] {
      auto generator = at::detail::createCPUGenerator(3);
      return at::randn({kValid, 3, small.pixels, small.pixels}, generator);
    }();
    Batch batch = {
        .images = images, .labels = at::arange(kValid, at::kLong), .weights = at::ones({kValid})};
    if (filled) {
      batch.images = at::cat({images, at::full({kFillers, 3, small.pixels, small.pixels}, 9.0)});
      batch.labels = at::arange(kValid + kFillers, at::kLong);
      batch.weights = at::cat({at::ones({kValid}), at::zeros({kFillers})});
      batch.valid = at::full({}, kValid, at::kInt);
    }
    const at::Tensor totals = at::zeros({kNumTotals});
    const at::Tensor loss = test::run_model(model.blocks, batch, {.totals = totals}, at::ones({}));
    std::map<std::string, std::vector<float>> found =
        test::part_values(model, &Parameter::gradient);
    for (const BlockState* state : all_states(model)) {
      if (state->change != StateChange::step_mean) continue;
      const std::span<float> values = test::floats(state->step_sum);
      found[state->part.name] = {values.begin(), values.end()};
    }
    found["loss"] = {loss.item<float>()};
    const std::span<float> counted = test::floats(totals);
    found["totals"] = {counted.begin(), counted.end()};
    return found;
  };
  const auto expected = run(false), found = run(true);
  for (const auto& [name, values] : expected) {
    CAPTURE(name);
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{found.at(name)[i]} - values[i], 2);
      size += std::pow(double{values[i]}, 2);
    }
    CHECK(std::sqrt(difference) <= 2e-4 * std::sqrt(size) + rounding);
  }
}

TEST_CASE("a forward that is computed again gives the same bits and counts nothing",
          "[models][cnn]") {
  const Small small = GENERATE(Small{"cnn-basic", 8}, Small{"resnet50", 32},
                               Small{"mobilenet-v2", 32}, Small{"efficientnet-b0", 32});
  Model model = model_of(small);
  test::bind_parameters(model, *make_random_weights(1));
  bind_states(model);
  const Batch batch = cnn_batch(model, 4);
  Tensors first, again, fixed;
  for (std::size_t b = 0; b + 1 < model.blocks.size(); ++b) {
    first = model.blocks[b]->forward(first, batch, {.mode = Mode::train});
    std::vector<at::Tensor> sums;
    for (const BlockState* state : model.blocks[b]->state()) {
      if (state->change == StateChange::step_mean) sums.push_back(state->step_sum.clone());
    }
    REQUIRE(!sums.empty());
    again = model.blocks[b]->forward(again, batch, {.mode = Mode::recompute});
    fixed = model.blocks[b]->forward(fixed, batch, {.mode = Mode::evaluate});
    CHECK(first[0].equal(again[0]));
    CHECK(!first[0].equal(fixed[0]));
    std::size_t i = 0;
    for (const BlockState* state : model.blocks[b]->state()) {
      if (state->change == StateChange::step_mean) CHECK(state->step_sum.equal(sums[i++]));
    }
  }
}

TEST_CASE("samples that skip a branch are the same when it is computed again", "[models][cnn]") {
  struct Skipping {
    std::string name;
    int blocks;  ///< with a residual; all but the first of all skip
  };
  const Skipping small = GENERATE(Skipping{"efficientnet-b0", 9}, Skipping{"convnext-tiny", 17});
  ModelConfig config;
  config.name = small.name;
  config.image_size = 32;
  config.classes = kClasses;
  config.drop_path = 0.5;
  Model model = make_model(config, {});
  CHECK(model.drops);
  test::bind_parameters(model, *make_random_weights(1));
  for (Parameter* parameter : all_parameters(model)) {
    if (parameter->init == Init::constant) parameter->value.fill_(0.5);
  }
  bind_states(model);
  constexpr std::int64_t kSamples = 8;
  const Batch batch = cnn_batch(model, kSamples);
  const auto context = [](Mode mode, std::int64_t seed) {
    return BlockContext{.mode = mode, .dropout_seed = at::full({}, seed, at::kLong)};
  };
  Tensors before;
  int skipping = 0, differing = 0;
  for (std::size_t b = 0; b + 1 < model.blocks.size(); ++b) {
    Block& block = *model.blocks[b];
    CAPTURE(block.name());
    const at::Tensor first = block.forward(before, batch, context(Mode::train, 5))[0];
    CHECK(first.equal(block.forward(before, batch, context(Mode::recompute, 5))[0]));
    const at::Tensor other = block.forward(before, batch, context(Mode::recompute, 6))[0],
                     whole = block.forward(before, batch, {.mode = Mode::recompute})[0];
    if (!first.equal(whole)) {
      // A sample has its input, or the branch grown so that the mean stays.
      ++skipping;
      differing += first.equal(other) ? 0 : 1;
      int skipped = 0;
      const at::Tensor x = before[0], branch = whole.sub(x);
      for (std::int64_t i = 0; i < kSamples; ++i) {
        if (first[i].equal(x[i])) {
          ++skipped;
        } else {
          const double factor = (first[i].sub(x[i]).norm() / branch[i].norm()).item<double>();
          CHECK(factor > 1.02);
          CHECK(factor < 2.001);
        }
      }
      CHECK(skipped < kSamples);
    }
    before = {first.detach()};
  }
  CHECK(skipping == small.blocks);
  CHECK(differing > 0);
}

TEST_CASE("small neighbouring blocks share a group up to the bucket", "[models][cnn]") {
  const Model apart = model_of({"mobilenet-v2", 32});
  CHECK(group_parameters(apart).groups.size() == apart.blocks.size());
  constexpr Bytes kBucket = Bytes{1} << 20;
  const Model shared = model_of({"mobilenet-v2", 32}, kBucket);
  const GroupedParameters grouped = group_parameters(shared);
  CHECK(grouped.groups.size() < shared.blocks.size() / 2);
  CHECK(grouped.names.front() == "features.0 to features.10");
  std::set<const Parameter*> seen;
  for (std::size_t g = 0; g < grouped.groups.size(); ++g) {
    Bytes bytes = 0;
    bool vector = false;
    for (const Parameter* parameter : grouped.groups[g]) {
      CHECK(seen.insert(parameter).second);
      bytes += parameter->numel() * kFloatBytes;
      vector = vector || parameter->shape.size() < 2;
      CHECK(vector == (parameter->shape.size() < 2));  // no matrix behind a vector
    }
    const auto readers = std::ranges::count_if(grouped.of_block, [&](const std::vector<int>& read) {
      return std::ranges::find(read, static_cast<int>(g)) != read.end();
    });
    CHECK((bytes <= kBucket || readers == 1));
  }
  CHECK(seen.size() == all_parameters(shared).size());
}

TEST_CASE("sizes that a convolutional model has not are refused", "[models][cnn]") {
  ModelConfig config;
  config.name = "vgg16";
  config.image_size = 31;
  CHECK_THROWS_WITH(make_model(config, {}),
                    "model.image_size: 31 pixels are too few for vgg16, use 32 or more");
  config.image_size = 64;
  config.width = 12;
  CHECK_THROWS_WITH(make_model(config, {}), "model.width: VGG has none");
  config.width = 0;
  CHECK_THROWS_WITH(make_model(config, {.splits = {.tensor = {.index = 0, .count = 2}}}),
                    "parallel.tensor: 2 ranks, but VGG is not cut by tensor ranks");
}

}  // namespace
}  // namespace dstrain
