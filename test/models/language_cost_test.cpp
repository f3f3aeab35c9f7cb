#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>

#include "engine/models/trainable.h"
#include "engine/models/weights.h"
#include "engine/nn/linear.h"
#include "test/models/bind.h"
#include "test/models/language_batch.h"
#include "test/models/live_bytes.h"
#include "test/models/run_blocks.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

TEST_CASE("every block of a language model keeps exactly the bytes that its cost states",
          "[models][cost]") {
  ModelConfig config = GENERATE(
      test::small_bloom_config(), test::small_qwen2_config(), test::small_qwen3_config(),
      test::small_llama_config(), test::small_phi3_config(), test::small_neox_config(),
      test::small_gpt2_config(), test::small_gemma2_config(), test::small_gemma3_config(),
      test::small_qwen2_moe_config(), test::small_qwen3_moe_config(), test::small_mixtral_config());
  CAPTURE(config.name);
  config.layers = 3;
  Model model = make_model(config, {.sequence = 16});
  test::bind_parameters(model, *make_random_weights(1));
  const Batch batch = test::language_batch(model, 6);
  BlockContext context{.totals = at::zeros({kNumTotals}), .sample_seed = at::ones({})};
  context.keep_hidden = GENERATE(false, true);
  const BatchShape shape{.micro_batch = 6, .compute_bytes = 4};

  // What stays for all layers and steps, the table of rotary positions, is made at first use.
  (void)test::run_model(model.blocks, batch, context, at::ones({}));
  Tensors before;
  for (const auto& block : model.blocks) {
    CAPTURE(block->name());
    const BlockCost cost = block->cost(shape);
    test::LiveBytes memory;
    (void)memory.take_peak();
    const std::int64_t start = memory.live();
    test::BlockRun run = test::run_forward(*block, before, batch, context);
    const Bytes hidden = context.keep_hidden ? cost.hidden_bytes : 0;
    // The first layer of parallel branches hands its input on, which the stem counts, too.
    const Bytes twice = block->name() == "gpt_neox.layers.0" ? cost.boundary_bytes() / 2 : 0;
    CHECK(memory.live() - start == cost.saved_bytes + hidden + cost.boundary_bytes() - twice);
    REQUIRE(run.output.size() == cost.boundary.size());
    for (std::size_t t = 0; t < run.output.size(); ++t) {
      CHECK(run.output[t].sizes() == at::IntArrayRef(cost.boundary[t].shape));
      CHECK(static_cast<Bytes>(run.output[t].nbytes()) == cost.boundary[t].bytes());
    }
    before = run.output;
    for (at::Tensor& tensor : before) tensor = tensor.detach();
  }
}

TEST_CASE("the layers of a language model have all its parameters, FLOPs and saved bytes",
          "[models][cost]") {
  ModelConfig config = GENERATE(
      test::small_bloom_config(), test::small_qwen2_config(), test::small_qwen3_config(),
      test::small_llama_config(), test::small_phi3_config(), test::small_neox_config(),
      test::small_gpt2_config(), test::small_olmo2_config(), test::small_gemma2_config(),
      test::small_gemma3_config(), test::small_qwen2_moe_config(), test::small_qwen3_moe_config());
  CAPTURE(config.name);
  const Model model = make_model(config, {.sequence = 16});
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

/// Runs forward of all blocks, then backward with the products of the layers put into a list each,
/// which run at the end. What each of them held.
std::vector<Bytes> run_in_two_parts(Model& model, const Batch& batch, const BlockContext& context,
                                    const test::LiveBytes& memory) {
  std::vector<test::BlockRun> runs;
  for (const auto& block : model.blocks) {
    runs.push_back(
        test::run_forward(*block, runs.empty() ? Tensors{} : runs.back().output, batch, context));
  }
  Tensors gradients = {at::ones({})};
  std::vector<DeferredWork> work(model.blocks.size());
  std::vector<Bytes> held(model.blocks.size());
  for (std::size_t i = model.blocks.size(); i-- > 0;) {
    const bool splits =
        model.blocks[i]->cost({.micro_batch = 6, .compute_bytes = 4}).held_bytes > 0;
    for (Parameter* parameter : model.blocks[i]->parameters())
      parameter->later = splits ? &work[i] : nullptr;
    gradients = test::run_backward(runs[i], gradients);
    for (Parameter* parameter : model.blocks[i]->parameters()) parameter->later = nullptr;
  }
  gradients.clear();
  for (std::size_t i = 0; i < work.size(); ++i) {
    const std::int64_t before = memory.live();
    for (const auto& products : work[i]) products();
    work[i].clear();
    held[i] = before - memory.live();
  }
  return held;
}

TEST_CASE("a backward in two parts holds the bytes that its cost states, with the same gradients",
          "[models][cost]") {
  ModelConfig config = GENERATE(
      test::small_bloom_config(), test::small_qwen2_config(), test::small_qwen3_config(),
      test::small_llama_config(), test::small_phi3_config(), test::small_neox_config(),
      test::small_gpt2_config(), test::small_gemma2_config(), test::small_gemma3_config(),
      test::small_qwen2_moe_config(), test::small_qwen3_moe_config(), test::small_mixtral_config());
  CAPTURE(config.name);
  config.layers = 3;
  Model model = make_model(config, {.sequence = 16});
  Model other = make_model(config, {.sequence = 16});
  test::bind_parameters(model, *make_random_weights(1));
  test::bind_parameters(other, *make_random_weights(1));
  const Batch batch = test::language_batch(model, 6);
  const BlockContext context{.totals = at::zeros({kNumTotals})};
  (void)test::run_model(model.blocks, batch, context, at::ones({}));
  test::LiveBytes memory;
  const std::vector<Bytes> held = run_in_two_parts(other, batch, context, memory);
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    const BlockCost cost = model.blocks[i]->cost({.micro_batch = 6, .compute_bytes = 4});
    CAPTURE(cost.name);
    const bool layer = i > 0 && i + 1 < model.blocks.size();
    CHECK((cost.held_bytes > 0) == layer);
    CHECK((cost.weight_flops > 0 && cost.weight_flops < cost.forward_flops) == layer);
    CHECK(held[i] == cost.held_bytes);
    const auto ours = other.blocks[i]->parameters(), theirs = model.blocks[i]->parameters();
    for (std::size_t p = 0; p < ours.size(); ++p)
      CHECK(ours[p]->gradient.equal(theirs[p]->gradient));
  }
}

TEST_CASE("layers state what attention, and inner ones what coding in FP8, moves",
          "[models][cost]") {
  Recipe recipe;
  recipe.model = test::small_qwen2_config();
  recipe.model.layers = 4;
  recipe.precision.compute = ComputeType::fp8;
  Model model = make_trainable_model(recipe, {.sequence = 16});
  const ModelCost cost = model_cost(model, {.micro_batch = 6, .compute_bytes = 2});
  constexpr Bytes kRows = 6 * 16;
  const Bytes attention = 16 * kRows * recipe.model.width;
  for (const std::size_t outer : {0u, 1u, 4u, 5u}) {
    const bool attends = outer == 1 || outer == 4;
    CHECK(cost.blocks[outer].fp8_flops == 0);
    CHECK(cost.blocks[outer].forward_traffic == (attends ? attention : 0));
    CHECK(cost.blocks[outer].backward_traffic == (attends ? 2 * attention : 0));
  }
  for (const std::size_t inner : {2u, 3u}) {
    std::int64_t elements = 0;
    Bytes forward = attention, backward = 2 * attention;
    for (Linear* linear : model.blocks[inner]->linears()) {
      const auto& shape = linear->weight().shape;
      elements += shape[0] * shape[1];
      const std::string& name = linear->parts().front().name;
      const bool down = name.find("down_proj") != std::string::npos,
                 gate = name.find("gate_proj") != std::string::npos;
      // Read for the largest value and for its codes, written by rows and by columns; of SwiGLU the
      // largest comes with it, and columns and codes of the gradient are made in backward: 5 bytes.
      forward += kRows * shape[1] * (down ? 2 + 1 : 2 + 2 + 1 + 1);
      backward += gate ? 0 : kRows * shape[0] * (2 + 2 + 1 + 1);
      if (down) backward += kRows * shape[1] * 5;
    }
    CHECK(cost.blocks[inner].fp8_flops == 2.0 * kRows * static_cast<double>(elements));
    CHECK(cost.blocks[inner].forward_traffic == forward);
    CHECK(cost.blocks[inner].backward_traffic == backward);
  }
}

TEST_CASE("layers with experts run products on two streams", "[models][cost]") {
  ModelConfig config = GENERATE(test::small_qwen2_config(), test::small_qwen2_moe_config());
  CAPTURE(config.name);
  Model model = make_model(config, {.sequence = 16});
  const ModelCost cost = model_cost(model, {.micro_batch = 6, .compute_bytes = 2});
  CHECK(cost.blocks.front().product_streams == 1);
  CHECK(cost.blocks[1].product_streams == (config.expert_width > 0 ? 2 : 1));
}

TEST_CASE("backward of a language model stays within its stated workspace", "[models][cost]") {
  ModelConfig config = GENERATE(
      test::small_bloom_config(), test::small_qwen2_config(), test::small_qwen3_config(),
      test::small_llama_config(), test::small_phi3_config(), test::small_neox_config(),
      test::small_gpt2_config(), test::small_olmo2_config(), test::small_gemma2_config(),
      test::small_gemma3_config(), test::small_qwen2_moe_config(), test::small_qwen3_moe_config());
  const bool bloom = config.name == "bloom-560m";
  CAPTURE(config.name);
  if (config.head_dim != 0) config.head_dim = 32;
  config.width = 96;
  config.vocab_size = 300;
  if (!bloom) config.mlp_width = 256;
  if (config.expert_width != 0) config.expert_width = 128;
  const Bytes hidden = std::max(256, config.experts_per_token * config.expert_width);
  Model model = make_model(config, {.sequence = 128});
  test::bind_parameters(model, *make_random_weights(1));
  const Batch batch = test::language_batch(model, 8);
  const BatchShape shape{.micro_batch = 8, .compute_bytes = 4};
  constexpr Bytes kRows = 8 * 128;
  const BlockContext context{.totals = at::zeros({kNumTotals}), .sample_seed = at::ones({})};

  std::vector<test::BlockRun> runs;
  test::LiveBytes memory;
  for (const auto& block : model.blocks) {
    runs.push_back(
        test::run_forward(*block, runs.empty() ? Tensors{} : runs.back().output, batch, context));
  }
  Tensors gradients = {at::ones({})};
  for (std::size_t i = model.blocks.size(); i-- > 0;) {
    CAPTURE(model.blocks[i]->name());
    const BlockCost cost = model.blocks[i]->cost(shape);
    // ATen's steps on a CPU make tensors that one kernel of a GPU does not: of the loss five times
    // the logits, of SwiGLU three products, of GELU four; attention's do not grow with the batch.
    const bool head = i + 1 == model.blocks.size();
    const Bytes cpu_only = (Bytes{1} << 20) + kRows * 4 *
                                                  (head     ? 5 * 300
                                                   : i == 0 ? 0
                                                   : bloom  ? 4 * 4 * 96
                                                            : 3 * hidden);
    (void)memory.take_peak();
    gradients = test::run_backward(runs[i], gradients);
    CHECK(memory.take_peak() <= cost.backward_workspace + cpu_only);
  }
}

TEST_CASE("the cost of a language model counts its multiply-adds", "[models][cost]") {
  ModelConfig config;
  config.name = "qwen2.5-3b";
  Model model = make_model(config, {.sequence = 1024});
  const ModelCost cost = model_cost(model, {.micro_batch = 2, .compute_bytes = 2});
  REQUIRE(cost.blocks.size() == 38);
  Flops total = 0;
  for (const BlockCost& block : cost.blocks) total += block.forward_flops;
  // A multiply-add per weight and token, without norms, biases and the embedding, but with the head
  // that shares its table; 2 T D a token for half of the attention's square.
  const double tokens = 2 * 1024, weights = 3'085'938'688 - 36.0 * (2048 + 512) - 73 * 2048;
  CHECK(total == Approx(2 * tokens * (weights + 36 * 1024 * 2048)).epsilon(1e-12));
  CHECK(cost.batch_bytes == 2 * 1024 * 20);
  CHECK(cost.blocks[0].forward_flops == 0);
}

TEST_CASE("a layer of BLOOM saves GELU's input and not its output", "[models][cost]") {
  ModelConfig config;
  config.name = "bloom-560m";
  Model model = make_model(config, {.sequence = 2048});
  const auto saved = [&](int bytes) {
    return model.blocks[2]->cost({.micro_batch = 1, .compute_bytes = bytes}).saved_bytes;
  };
  constexpr Bytes kRows = 2048, kStatistics = kRows * (2 * 2 + 16) * 4;
  // Per row: two sums and outputs of norms, three times query, key, value, the attention's output,
  // and the GELU's input of four widths; values keep their 64 elements where heads are stretched to
  // 80.
  CHECK(saved(4) == kRows * (3 + 3 + 1 + 4) * 1024 * 4 + kStatistics);
  CHECK(saved(2) == kRows * (3 + 3 + 1 + 4) * 1024 * 2 + kStatistics);
}

}  // namespace
}  // namespace dstrain
