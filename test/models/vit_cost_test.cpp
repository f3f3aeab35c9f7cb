#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <set>
#include <string>

#include "engine/models/vit/model.h"
#include "engine/models/weights.h"
#include "test/models/bind.h"
#include "test/models/live_bytes.h"
#include "test/models/run_blocks.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

/// One of each kind of Vision Transformer.
ModelConfig any_tower() {
  const std::string name =
      GENERATE(as<std::string>(), "vit-tiny", "deit-tiny", "dinov2-small", "dinov2-giant",
               "clip-vit-base-patch32", "siglip-base-patch16-224");
  return test::small_tower_config(name);
}

Batch vit_batch(const Model& model, std::int64_t size) {
  return {.images = at::randn({size, model.channels, model.image_size, model.image_size}),
          .labels = at::zeros({size}, at::kLong),
          .weights = at::ones({size})};
}

TEST_CASE("every block keeps exactly the bytes that its cost states", "[models][cost]") {
  ModelConfig config = any_tower();
  if (config.mlp_width > 0) config.mlp_width = GENERATE(16, 64);
  config.layers = 3;
  CAPTURE(config.name);
  Model model = make_model(config, {.classes = 7});
  test::bind_parameters(model, *make_random_weights(1));
  const Batch batch = vit_batch(model, 6);
  BlockContext context{.totals = at::zeros({kNumTotals})};
  context.keep_hidden = GENERATE(false, true);
  const BatchShape shape{.micro_batch = 6, .compute_bytes = 4};

  Tensors before;
  for (const auto& block : model.blocks) {
    CAPTURE(block->name());
    const BlockCost cost = block->cost(shape);
    test::LiveBytes memory;
    (void)memory.take_peak();
    const std::int64_t start = memory.live();
    test::BlockRun run = test::run_forward(*block, before, batch, context);
    const Bytes hidden = context.keep_hidden ? cost.hidden_bytes : 0;
    CHECK(memory.live() - start == cost.saved_bytes + hidden + cost.boundary_bytes());
    REQUIRE(run.output.size() == cost.boundary.size());
    for (std::size_t t = 0; t < run.output.size(); ++t) {
      CHECK(run.output[t].sizes() == at::IntArrayRef(cost.boundary[t].shape));
      CHECK(static_cast<Bytes>(run.output[t].nbytes()) == cost.boundary[t].bytes());
    }
    before = run.output;
    for (at::Tensor& tensor : before) tensor = tensor.detach();
  }
}

TEST_CASE("the layers of a ViT have all its parameters, FLOPs and saved bytes", "[models][cost]") {
  const ModelConfig config = any_tower();
  CAPTURE(config.name);
  const Model model = make_model(config, {.classes = 7});
  std::int64_t parameters = 0, trained = 0;
  std::set<const Parameter*> counted;
  LayerCost sum;
  for (const auto& block : model.blocks) {
    for (const Parameter* parameter : block->parameters()) {
      if (!counted.insert(parameter).second) continue;
      parameters += parameter->numel();
      if (parameter->trainable) trained += parameter->numel();
    }
    const BlockCost cost = block->cost({.micro_batch = 6, .compute_bytes = 4});
    CHECK(total(cost.layers).forward_flops == cost.forward_flops);
    CHECK(total(cost.layers).saved_bytes == cost.saved_bytes);
    sum += total(cost.layers);
  }
  CHECK(sum.parameters == parameters);
  CHECK(sum.trained == trained);
}

TEST_CASE("a layer's backward stays within its stated workspace", "[models][cost]") {
  ModelConfig config = any_tower();
  config.image_size = 32;
  config.width = 64;
  config.heads = 4;
  if (config.mlp_width > 0) config.mlp_width = GENERATE(64, 256);
  config.layers = 2;
  CAPTURE(config.name);
  Model model = make_model(config, {.classes = 7});
  test::bind_parameters(model, *make_random_weights(1));
  const Batch batch = vit_batch(model, 8);
  const BatchShape shape{.micro_batch = 8, .compute_bytes = 4};
  const BlockContext context{.keep_hidden = GENERATE(false, true)};
  const Tensors stem = test::run_forward(*model.blocks[0], {}, batch, {}).output;
  const BlockCost cost = model.blocks[1]->cost(shape);

  test::LiveBytes memory;
  (void)memory.take_peak();
  test::BlockRun run = test::run_forward(*model.blocks[1], stem, batch, context);
  // On a CPU the GELU adds its bias in a tensor of its own.
  const std::int64_t hidden = config.mlp_width > 0 ? config.mlp_width : 4 * config.width;
  const Bytes biased = Bytes{8} * 66 * hidden * 4;
  CHECK(memory.take_peak() <= cost.saved_bytes + (context.keep_hidden ? cost.hidden_bytes : 0) +
                                  cost.boundary_bytes() + cost.forward_workspace + biased);
  // As the layer above returns them: one tensor for both.
  const at::Tensor gradient = at::ones_like(run.output[0]);
  const Tensors input_gradients = test::run_backward(run, {gradient, gradient});
  // ATen's attention on a CPU and fp32 gradients of small parameters come on top; they do not grow
  // with the batch.
  const Bytes cpu_only = Bytes{1} << 20;
  const Bytes then = context.keep_hidden ? cost.hidden_workspace : 0;
  CHECK(memory.take_peak() <= cost.backward_workspace + then + cpu_only);
}

TEST_CASE("the cost of a model counts its multiply-adds", "[models][cost]") {
  ModelConfig config;
  config.name = "vit-base";
  Model model = make_model(config, {.classes = 1000});
  const ModelCost cost = model_cost(model, {.micro_batch = 2, .compute_bytes = 2});
  REQUIRE(cost.blocks.size() == 14);
  REQUIRE(cost.groups.size() == 14);
  CHECK(cost.blocks[5].groups == std::vector<int>{5});
  Flops total = 0;
  for (const BlockCost& block : cost.blocks) total += block.forward_flops;
  // Per image 17.58e9 multiply-adds: the patches, 12 layers of 12 D^2 a token and 2 T D a token for
  // attention, the head.
  const double tokens = 197, width = 768;
  const double per_image = 196 * 768 * width +
                           12 * (12 * width * width * tokens + 2 * tokens * tokens * width) +
                           width * 1000;
  CHECK(total == Approx(2 * 2 * per_image).epsilon(1e-12));
  CHECK(cost.batch_bytes == 2 * (3 * 224 * 224 * 3 + 20));
  std::int64_t elements = 0;
  for (const GroupCost& group : cost.groups) {
    for (const std::int64_t size : group.tensor_sizes) elements += size;
  }
  CHECK(elements == 86'567'656);
}

}  // namespace
}  // namespace dstrain
