#include "engine/models/adapters.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <set>

#include "engine/base/error.h"
#include "engine/models/groups.h"
#include "engine/models/peft.h"
#include "engine/models/trainable.h"
#include "engine/models/vit/model.h"
#include "engine/program/cost.h"
#include "test/models/bind.h"
#include "test/models/language_batch.h"
#include "test/models/live_bytes.h"
#include "test/models/run_blocks.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

constexpr ModelInputs kInputs{.classes = 5, .sequence = 16};

using Patterns = std::vector<std::string>;

LoraConfig lora_of(int rank, Patterns targets = {}, Patterns also_train = {}) {
  LoraConfig config;
  config.rank = rank;
  config.targets = std::move(targets);
  config.also_train = std::move(also_train);
  return config;
}

Recipe recipe_of(const ModelConfig& model, const LoraConfig& lora) {
  Recipe recipe;
  recipe.model = model;
  recipe.lora = lora;
  return recipe;
}

Model adapted(const LoraConfig& lora, const ModelConfig& config = test::small_config()) {
  return make_trainable_model(recipe_of(config, lora), kInputs);
}

/// With adapters that do something.
Model bound(const LoraConfig& lora, const ModelConfig& config = test::small_config()) {
  Model model = adapted(lora, config);
  test::bind_parameters(model, *make_random_weights(3));
  for (Parameter* parameter : all_parameters(model)) {
    if (parameter->parts[0].name.ends_with("lora_B.weight")) parameter->value.normal_(0, 0.3);
  }
  return model;
}

std::set<std::string> trained(const Model& model) {
  std::set<std::string> names;
  for (const Parameter* parameter : all_parameters(model)) {
    for (const Piece& part : parameter->parts) {
      if (parameter->trainable) names.insert(part.name);
    }
  }
  return names;
}

std::set<std::string> adapted_names(const Model& model) {
  std::set<std::string> names;
  for (const AdaptedMap& map : adapted_maps(model)) names.insert(map.name());
  return names;
}

Batch images(const Model& model, std::int64_t size) {
  return {.images = at::randn({size, model.channels, model.image_size, model.image_size}),
          .labels = at::zeros({size}, at::kLong),
          .weights = at::ones({size})};
}

at::Tensor vit_logits(Model& model, const Batch& batch, const at::Tensor& dropout_seed = {}) {
  const at::NoGradGuard no_gradients;
  Tensors state;
  for (std::size_t i = 0; i + 1 < model.blocks.size(); ++i)
    state = model.blocks[i]->forward(state, batch, {.dropout_seed = dropout_seed});
  return dynamic_cast<VitHead&>(*model.blocks.back()).logits(state);
}

std::string error_of(const LoraConfig& lora, const ModelConfig& config = test::small_config()) {
  try {
    (void)adapted(lora, config);
  } catch (const Error& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "no error";
}

TEST_CASE("adapters are trained and nothing else, but what the recipe names", "[models][lora]") {
  const std::string layer = "base_model.model.vit.encoder.layer.1.attention.attention.";
  const Model plain = adapted(lora_of(2, {"vit.encoder.layer.1.*.value"}));
  CHECK(trained(plain) ==
        std::set<std::string>{layer + "value.lora_A.weight", layer + "value.lora_B.weight"});
  const Model with_head =
      adapted(lora_of(2, {"vit.encoder.layer.1.*.value"}, {"classifier", "vit.layernorm.bias"}));
  CHECK(trained(with_head) ==
        std::set<std::string>{layer + "value.lora_A.weight", layer + "value.lora_B.weight",
                              "classifier.weight", "classifier.bias", "vit.layernorm.bias"});
  // A block that trains something has a group of each kind; the first layer none to train.
  const GroupedParameters grouped = group_parameters(with_head);
  CHECK(grouped.names == std::vector<std::string>{"vit.embeddings", "vit.encoder.layer.0",
                                                  "vit.encoder.layer.1 (frozen)",
                                                  "vit.encoder.layer.1", "classifier (frozen)",
                                                  "classifier"});
}

TEST_CASE("hidden matrices are those of the layers, of adapters too, and stand first in a group",
          "[models][lora]") {
  const int rank = GENERATE(0, 2);
  for (const ModelConfig& config :
       {test::small_config(), test::small_bloom_config(), test::small_qwen2_config()}) {
    CAPTURE(config.name, rank);
    Model model = adapted(lora_of(rank), config);
    for (std::size_t b = 0; b < model.blocks.size(); ++b) {
      const bool layer = b > 0 && b + 1 < model.blocks.size();
      for (const Parameter* parameter : model.blocks[b]->parameters()) {
        CAPTURE(parameter->parts[0].name);
        CHECK(parameter->hidden_matrix == (layer && parameter->shape.size() == 2));
      }
    }
    const ModelCost cost = model_cost(model, {.micro_batch = 1});
    for (const GroupCost& group : cost.groups) {
      std::int64_t stacked = 0, first = 0;
      for (const MatrixShape& shape : group.matrices) stacked += shape.rows * shape.columns;
      for (int i = 0; i < group.hidden_tensors; ++i)
        first += group.tensor_sizes[static_cast<std::size_t>(i)];
      CHECK(stacked == first);
    }
  }
}

TEST_CASE("targets mean linear maps by any name that files have for them", "[models][lora]") {
  const auto names = [](const ModelConfig& config, std::vector<std::string> targets) {
    return adapted_names(adapted(lora_of(1, std::move(targets)), config));
  };
  const ModelConfig vit = test::small_config(), bloom = test::small_bloom_config(),
                    qwen2 = test::small_qwen2_config();
  CHECK(names(vit, {}) == names(vit, {"query", "value"}));
  CHECK(names(vit, {"q_proj", "v_proj"}) == names(vit, {"query", "value"}));
  CHECK(names(vit, {"query", "value"}).size() == 4);
  CHECK(names(vit, {"*"}).size() == 12);
  CHECK(names(vit, {"vit.encoder.layer.0.*.key"}) ==
        std::set<std::string>{"vit.encoder.layer.0.attention.attention.key"});
  CHECK(names(bloom, {}) ==
        std::set<std::string>{"transformer.h.0.self_attention.query_key_value",
                              "transformer.h.1.self_attention.query_key_value"});
  CHECK(names(bloom, {"h.1.mlp.*"}) == std::set<std::string>{"transformer.h.1.mlp.dense_h_to_4h",
                                                             "transformer.h.1.mlp.dense_4h_to_h"});
  CHECK(names(qwen2, {}) == names(qwen2, {"?_proj"}));
  CHECK(names(qwen2, {"?_proj"}).size() == 8);
  CHECK(names(qwen2, {"*_proj"}).size() == 14);
  for (const ModelConfig& other : {test::small_qwen3_config(), test::small_llama_config()})
    CHECK(names(other, {}) == names(qwen2, {}));

  CHECK_THAT(error_of(lora_of(1, {"querry"})),
             Catch::Contains("lora.targets: no linear map's name matches 'querry'") &&
                 Catch::Contains("dense, key, query, value"));
  CHECK_THAT(error_of(lora_of(1, {}, {"clasifier"})),
             Catch::Contains("lora.also_train: no tensor's name matches 'clasifier'"));
  CHECK_THAT(error_of(lora_of(1, {}, {"query"})),
             Catch::Contains("lora.also_train: 'query' matches only some of"));
  CHECK_THAT(
      error_of(lora_of(1, {}, {"lm_head"}), test::small_bloom_config()),
      Catch::Contains("'lm_head' is the head, which reads the embedding's table "
                      "'transformer.word_embeddings.weight' in this model | name the table"));
}

TEST_CASE("a new adapter changes nothing, and its second matrix learns first", "[models][lora]") {
  Model plain = test::small_model(5), model = adapted(lora_of(4));
  test::bind_parameters(plain, *make_random_weights(3));
  test::bind_parameters(model, *make_random_weights(3));
  const Batch batch = images(plain, 3);
  CHECK(at::equal(vit_logits(model, batch), vit_logits(plain, batch)));

  (void)test::run_model(model.blocks, batch, {.totals = at::zeros({kNumTotals})}, at::ones({}));
  for (const Parameter* parameter : all_parameters(model)) {
    CAPTURE(parameter->parts[0].name);
    const bool learns = parameter->parts[0].name.ends_with("lora_B.weight");
    CHECK((parameter->gradient.abs().max().item<float>() > 0) == learns);
  }
}

TEST_CASE("an adapter's first matrix starts uniform within 1 / sqrt(columns)", "[models][lora]") {
  ModelConfig config = test::small_config();
  config.width = 256;
  Model model = adapted(lora_of(64), config);
  test::bind_parameters(model, *make_random_weights(3));
  const at::Tensor a =
      test::parameter_named(model,
                            "base_model.model.vit.encoder.layer.0.attention.attention.query."
                            "lora_A.weight")
          .value;
  const double bound = 1.0 / 16, deviation = bound / std::sqrt(3.0);
  CHECK(a.abs().max().item<double>() <= bound);
  CHECK(a.abs().max().item<double>() > 0.999 * bound);
  // 16384 values: the mean is within 4 of its deviations, the variance within 2 %.
  CHECK(std::abs(a.mean().item<double>()) < 4 * deviation / 128);
  CHECK(a.var().item<double>() == Approx(deviation * deviation).epsilon(0.02));
}

TEST_CASE("the product of an adapter is scaled by alpha / rank", "[models][lora]") {
  LoraConfig lora = lora_of(4);
  lora.alpha = 4;
  Model once = bound(lora);
  lora.alpha = 8;
  Model twice = bound(lora);
  for (const AdaptedMap& map : adapted_maps(twice)) {
    const std::string name = adapter_prefix(map.name()) + ".lora_B.weight";
    test::parameter_named(twice, name).value.copy_(test::parameter_named(once, name).value).div_(2);
  }
  const Batch batch = images(once, 3);
  const at::Tensor expected = vit_logits(once, batch);
  CHECK((vit_logits(twice, batch) - expected).abs().max().item<double>() <=
        test::kPromised * expected.abs().max().item<double>());
}

TEST_CASE("dropout is a function of the micro-batch's seed and drops the right share",
          "[models][lora]") {
  LoraConfig lora = lora_of(4);
  lora.dropout = 0.5;
  Model model = bound(lora);
  const Batch batch = images(model, 3);
  const auto seed = [](std::int64_t value) { return at::full({}, value, at::kLong); };
  const at::Tensor plain = vit_logits(model, batch);
  CHECK(at::equal(vit_logits(model, batch, seed(7)), vit_logits(model, batch, seed(7))));
  CHECK(!at::equal(vit_logits(model, batch, seed(7)), vit_logits(model, batch, seed(8))));
  CHECK(!at::equal(vit_logits(model, batch, seed(7)), plain));

  // One adapter by itself on x = 1: with a = 1 and b = 1 the output counts what was kept.
  constexpr std::int64_t kRows = 64, kWidth = 256;
  LowRank adapter("one", {Piece("matrix", {1, kWidth})}, 0,
                  {.rank = 1, .scale = 1, .dropout = 0.3});
  LowRank other("two", {Piece("matrix", {1, kWidth})}, 0, {.rank = 1, .scale = 1, .dropout = 0.3});
  std::vector<Parameter*> weights;
  adapter.add_parameters(weights);
  other.add_parameters(weights);
  for (Parameter* weight : weights) weight->value = at::ones(weight->shape);
  Parameter base;
  base.hold({{"base", {1, kWidth}}});
  base.value = at::zeros(base.shape);
  const at::NoGradGuard no_gradients;
  const at::Tensor x = at::ones({kRows, kWidth});
  const auto sums = [&](LowRank& of, const at::Tensor& dropout_seed) {
    return ops::adapted_linear(x, base, nullptr, {of.term({.dropout_seed = dropout_seed})});
  };
  CHECK(at::equal(sums(adapter, {}), at::ones({kRows, 1}) * kWidth));
  const at::Tensor kept = sums(adapter, seed(5)) * 0.7;
  // 16384 draws of 0.7: within 4 deviations.
  CHECK(kept.mean().item<double>() / kWidth == Approx(0.7).margin(4 * 0.4583 / 128));
  CHECK(!at::equal(sums(adapter, seed(5)), sums(other, seed(5))));
}

TEST_CASE("every block with adapters keeps exactly the bytes that its cost states",
          "[models][lora][cost]") {
  const ModelConfig config = GENERATE(test::small_config(), test::small_bloom_config(),
                                      test::small_qwen2_config(), test::small_qwen3_config());
  LoraConfig lora = lora_of(4, GENERATE(Patterns{}, Patterns{"*"}));
  lora.dropout = GENERATE(0.0, 0.5);
  CAPTURE(config.name, lora.targets, lora.dropout);
  Model model = bound(lora, config);
  const Batch batch = model.is_language() ? test::language_batch(model, 6) : images(model, 6);
  const BlockContext context{.dropout_seed = at::full({}, 9, at::kLong),
                             .totals = at::zeros({kNumTotals})};
  const BatchShape shape{.micro_batch = 6, .compute_bytes = 4};

  Tensors before = model.blocks[0]->forward({}, batch, context);
  for (std::size_t i = 1; i + 1 < model.blocks.size(); ++i) {
    Block& block = *model.blocks[i];
    CAPTURE(block.name());
    const BlockCost cost = block.cost(shape);
    (void)block.forward(before, batch, context);  // tables of positions are made once
    test::LiveBytes memory;
    const std::int64_t start = memory.live();
    test::BlockRun run = test::run_forward(block, before, batch, context);
    CHECK(memory.live() - start == cost.saved_bytes + cost.boundary_bytes());
    before = run.output;
    for (at::Tensor& tensor : before) tensor = tensor.detach();
  }
}

TEST_CASE("an exported adapter loads again, element for element", "[models][lora][weights]") {
  const test::TempDir folder;
  LoraConfig lora = lora_of(3, {"query", "dense"}, {"classifier"});
  lora.alpha = 6;
  Model model = bound(lora);
  const auto values = test::part_values(model, &Parameter::value);
  export_adapter(folder / "out", model, lora, test::reader_of(values), {});

  lora.weights = (folder / "out").string();
  Model loaded = adapted(lora);
  std::vector<std::string> notes;
  Recipe recipe = recipe_of(test::small_config(), lora);
  recipe.run.seed = 3;  // of the base
  test::bind_parameters(loaded, *first_weights(recipe, loaded, notes));
  CHECK(test::part_values(loaded, &Parameter::value) == values);

  SECTION("what does not fit is named") {
    lora.alpha = 5;
    lora.targets = {"query"};
    Model other = adapted(lora);
    // Its tensors do not fit either; that follows and is not said.
    CHECK_THROWS_WITH(open_adapter(folder / "out", other, lora, make_random_weights(3)),
                      Catch::Contains("lora_alpha is 6; lora.alpha is 5") &&
                          !Catch::Contains("is not trained here"));
  }
}

TEST_CASE("merged weights give the logits of base and adapter", "[models][lora][weights]") {
  const LoraConfig lora = lora_of(3, {"*"});
  Model model = bound(lora), plain = test::small_model(5);
  const auto values = test::part_values(model, &Parameter::value);
  const TensorReader read = merged(model, lora, test::reader_of(values));
  test::bind_parameters(plain, *make_random_weights(3));
  for (Parameter* parameter : all_parameters(plain)) {
    std::int64_t row = 0;
    for (const Piece& part : parameter->parts) {
      const std::vector<float> read_values = read(part);
      const at::Tensor rows = parameter->value.narrow(0, row, part.shape[0]);
      std::copy(read_values.begin(), read_values.end(), test::floats(rows).begin());
      row += part.shape[0];
    }
  }
  const Batch batch = images(model, 3);
  const at::Tensor expected = vit_logits(model, batch);
  CHECK((vit_logits(plain, batch) - expected).abs().max().item<double>() <=
        test::kPromised * expected.abs().max().item<double>());
  Model base = test::small_model(5);
  test::bind_parameters(base, *make_random_weights(3));
  CHECK(!at::allclose(vit_logits(base, batch), expected));
}

}  // namespace
}  // namespace dstrain
