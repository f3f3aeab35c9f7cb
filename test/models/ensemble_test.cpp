#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/models/image/head.h"
#include "engine/models/weights.h"
#include "engine/nn/block_state.h"
#include "engine/nn/call.h"
#include "test/models/bind.h"
#include "test/models/live_bytes.h"
#include "test/models/norm_bytes.h"
#include "test/models/run_blocks.h"
#include "test/support/catch.h"

// Ensembles against their members, and what they cost.

namespace dstrain {
namespace {

constexpr std::int64_t kEnsembleSamples = 3, kNumClasses = 7, kPixels = 64;

ModelConfig small_config(const std::string& name) {
  ModelConfig config;
  config.name = name;
  config.image_size = kPixels;
  config.classes = kNumClasses;
  config.dropout = 0;
  return config;
}

ModelConfig ensemble_config(EnsembleAverage average) {
  ModelConfig config = small_config("ensemble");
  config.members = {"cnn-basic", "mobilenet-v2", "cnn-basic"};
  config.member_weights = {1, 2, 0.5};
  config.average = average;
  return config;
}

void bind_member_states(const Model& model) {
  for (BlockState* state : all_states(model)) {
    state->value = at::full(state->part.shape, state->initial, state->type);
    if (state->change == StateChange::step_mean) state->step_sum = at::zeros(state->part.shape);
  }
}

Batch small_batch() {
  return {.images = at::randn({kEnsembleSamples, 3, kPixels, kPixels}),
          .labels = at::arange(kEnsembleSamples, at::kLong),
          .weights = at::ones({kEnsembleSamples})};
}

TEST_CASE("an ensemble has the loss and the gradients of its members' weighted average",
          "[models][cnn][ensemble]") {
  const EnsembleAverage average = GENERATE(EnsembleAverage::logits, EnsembleAverage::probabilities);
  const ModelConfig config = ensemble_config(average);
  Model ensemble = make_model(config, {});
  test::bind_parameters(ensemble, *make_random_weights(1));
  bind_member_states(ensemble);
  const Batch batch = small_batch();
  const at::Tensor totals = at::zeros({kNumTotals});
  const at::Tensor loss = test::run_model(ensemble.blocks, batch, {.totals = totals}, at::ones({}));

  // The members by themselves, in one graph.
  const std::vector<Parameter*> ours = all_parameters(ensemble);
  std::vector<Model> members;
  at::Tensor mean;
  std::size_t next = 0;
  for (std::size_t m = 0; m < config.members.size(); ++m) {
    Model& member = members.emplace_back(make_model(small_config(config.members[m]), {}));
    test::bind_parameters(member, *make_random_weights(1));
    bind_member_states(member);
    for (Parameter* parameter : all_parameters(member)) {
      const Parameter& our = *ours.at(next++);
      REQUIRE(our.parts.front().name ==
              "members." + std::to_string(m) + "." + parameter->parts.front().name);
      parameter->value.copy_(our.value);
    }
    const BlockContext context{.totals = at::zeros({kNumTotals})};
    Tensors x;
    for (std::size_t b = 0; b + 1 < member.blocks.size(); ++b)
      x = member.blocks[b]->forward(x, batch, context);
    LayerPass pass{.call = Call::of(batch, context)};
    at::Tensor own = dynamic_cast<ImageHead&>(*member.blocks.back())
                         .run_logits(pass, {.tensor = x.at(0)})
                         .tensor;
    if (average == EnsembleAverage::probabilities) own = own.softmax(-1);
    own = own * (config.member_weights[m] / 3.5);
    mean = m == 0 ? own : mean + own;
  }
  REQUIRE(next == ours.size());
  if (average == EnsembleAverage::probabilities) mean = mean.log();
  const at::Tensor expected = at::cross_entropy_loss(mean, batch.labels, {}, at::Reduction::Sum);
  expected.backward();
  CHECK(loss.item<float>() == Approx(expected.item<float>()).epsilon(1e-5));
  CHECK(totals[3].item<float>() == kEnsembleSamples);
  next = 0;
  for (const Model& member : members) {
    // The bias of a norm before a convolution and its norm has no gradient but rounding.
    double largest = 0;
    for (const Parameter* parameter : all_parameters(member))
      largest = std::max(largest, parameter->gradient.norm().item<double>());
    for (const Parameter* parameter : all_parameters(member)) {
      const at::Tensor found = ours[next++]->gradient;
      CAPTURE(parameter->parts.front().name);
      const double difference = (found - parameter->gradient).norm().item<double>();
      CHECK(difference <= 1e-3 * parameter->gradient.norm().item<double>() + 1e-6 * largest);
    }
  }
}

TEST_CASE("every block of an ensemble keeps exactly the bytes that its cost states",
          "[models][cost][cnn][ensemble]") {
  Model model = make_model(
      ensemble_config(GENERATE(EnsembleAverage::logits, EnsembleAverage::probabilities)), {});
  test::bind_parameters(model, *make_random_weights(1));
  bind_member_states(model);
  const Batch batch = small_batch();
  const BlockContext context{.totals = at::zeros({kNumTotals})};
  Tensors before;
  for (const auto& block : model.blocks) {
    CAPTURE(block->name());
    const BlockCost cost = block->cost({.micro_batch = kEnsembleSamples, .compute_bytes = 4});
    test::LiveBytes memory;
    const std::int64_t start = memory.live();
    test::BlockRun run = test::run_forward(*block, before, batch, context);
    const Bytes kept = memory.live() - start;
    CHECK(kept + test::norm_bytes_of_gpu(*block) == cost.saved_bytes + cost.boundary_bytes());
    REQUIRE(run.output.size() == cost.boundary.size());
    before.clear();
    for (std::size_t i = 0; i < run.output.size(); ++i) {
      CHECK(run.output[i].sizes() == at::IntArrayRef(cost.boundary[i].shape));
      CHECK(run.output[i].is_contiguous());
      before.push_back(run.output[i].detach());
    }
  }
}

TEST_CASE("members that do not fit are refused", "[models][cnn][ensemble]") {
  ModelConfig config;
  config.name = "ensemble";
  CHECK_THROWS_WITH(make_model(config, {}), "model.members: empty, but model.name is ensemble");
  config.members = {"resnet18", "cnn-basic"};
  CHECK_THROWS_WITH(make_model(config, {}),
                    "model.members: resnet18 takes images of 224 pixels, cnn-basic of 32");
  config.member_weights = {1};
  CHECK_THROWS_WITH(make_model(config, {}),
                    "model.member_weights: 1 weights, but model.members has 2 models");
  config.members = {"vit-base"};
  CHECK_THROWS_WITH(make_model(config, {}),
                    "model.members: 'vit-base' is no convolutional model that dstrain knows");
}

}  // namespace
}  // namespace dstrain
