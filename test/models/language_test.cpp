#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "engine/models/language_head.h"
#include "engine/models/weights.h"
#include "test/models/bind.h"
#include "test/models/language_batch.h"
#include "test/models/run_blocks.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"

namespace dstrain {
namespace {

using Values = std::map<std::string, std::vector<float>>;

constexpr int kLanguageTokens = 8;

Model make_bound(const ModelConfig& config) {
  Model model = make_model(config, {.sequence = kLanguageTokens});
  test::bind_parameters(model, *make_random_weights(4));
  // Weights of the usual size make all predictions alike; larger ones tell mistakes apart.
  for (Parameter* parameter : all_parameters(model)) {
    if (parameter->init == Init::normal) parameter->value.mul_(20);
  }
  return model;
}

struct LanguageResult {
  Values gradients;
  std::vector<float> totals;
};

/// Sums and gradients of a model on these batches, one after the other.
LanguageResult run(const ModelConfig& config, const std::vector<Batch>& batches) {
  Model model = make_bound(config);
  const BlockContext context{.totals = at::zeros({kNumTotals})};
  for (const Batch& batch : batches)
    (void)test::run_model(model.blocks, batch, context, at::ones({}));
  const auto totals = test::floats(context.totals);
  return {.gradients = test::part_values(model, &Parameter::gradient),
          .totals = {totals.begin(), totals.end()}};
}

ModelConfig config_of(const std::string& family) {
  if (family == "bloom") return test::small_bloom_config();
  if (family == "qwen3") return test::small_qwen3_config();
  if (family == "llama") return test::small_llama_config();
  if (family == "gpt_neox") return test::small_neox_config();
  if (family == "gpt2") return test::small_gpt2_config();
  if (family == "mistral") return test::small_mistral_config();
  if (family == "olmo2") return test::small_olmo2_config();
  if (family == "gemma2") return test::small_gemma2_config();
  if (family == "gemma3") return test::small_gemma3_config();
  if (family == "phi3") return test::small_phi3_config();
  return test::small_qwen2_config();
}

/// The same whatever ran before: few draws come near what rounding may do.
Batch random_batch(const ModelConfig& config, std::int64_t size) {
  at::manual_seed(static_cast<std::uint64_t>(size));
  return test::language_batch(make_model(config, {.sequence = kLanguageTokens}), size);
}

Batch joined_texts(const Batch& a, const Batch& b) {
  return {.tokens = at::cat({a.tokens, b.tokens}),
          .labels = at::cat({a.labels, b.labels}),
          .weights = at::cat({a.weights, b.weights})};
}

/// Output of all blocks but the head.
Tensors before_head(Model& model, const Batch& batch) {
  const at::NoGradGuard no_gradients;
  Tensors state;
  for (std::size_t i = 0; i + 1 < model.blocks.size(); ++i)
    state = model.blocks[i]->forward(state, batch, {});
  return state;
}

LanguageHead& head_of(Model& model) { return dynamic_cast<LanguageHead&>(*model.blocks.back()); }

TEST_CASE("two micro-batches of text add up to one batch of both", "[models]") {
  const ModelConfig config =
      config_of(GENERATE("bloom", "qwen2", "qwen3", "llama", "mistral", "phi3", "gpt_neox", "gpt2",
                         "olmo2", "gemma2", "gemma3"));
  const Batch a = random_batch(config, 2), b = random_batch(config, 3);
  const LanguageResult apart = run(config, {a, b}), together = run(config, {joined_texts(a, b)});
  CHECK(apart.totals[0] == Approx(together.totals[0]).epsilon(test::kPromised));
  CHECK(test::worst_difference(apart.gradients, together.gradients) < test::kPromised);
  CHECK(together.totals[2] == 0);
  CHECK(together.totals[3] == 5 * kLanguageTokens);
  CHECK(test::worst_difference(together.gradients, run(config, {a}).gradients) > 1e-2);
}

TEST_CASE("a token of weight zero adds nothing, whatever follows the last one that counts",
          "[models]") {
  const ModelConfig config =
      config_of(GENERATE("bloom", "qwen2", "qwen3", "llama", "mistral", "phi3", "gpt_neox", "gpt2",
                         "olmo2", "gemma2", "gemma3"));
  Batch batch = random_batch(config, 2);
  batch.weights.view({2, kLanguageTokens}).narrow(1, 5, 3).zero_();
  Batch other = batch;
  other.tokens = batch.tokens.clone();
  other.labels = batch.labels.clone();
  other.tokens.narrow(1, 6, 2).zero_();
  other.labels.view({2, kLanguageTokens}).narrow(1, 5, 3).zero_();
  const LanguageResult one = run(config, {batch}), two = run(config, {other});
  CHECK(one.totals[3] == 10);
  // Bit for bit: what is added is zero.
  CHECK(one.totals == two.totals);
  CHECK(one.gradients == two.gradients);
}

TEST_CASE("every parameter of a language model gets a gradient", "[models]") {
  const ModelConfig config =
      config_of(GENERATE("bloom", "qwen2", "qwen3", "llama", "mistral", "phi3", "gpt_neox", "gpt2",
                         "olmo2", "gemma2", "gemma3"));
  const Values gradients = run(config, {random_batch(config, 4)}).gradients;
  for (const auto& [name, values] : gradients) {
    CAPTURE(name);
    CHECK_FALSE(std::all_of(values.begin(), values.end(), [](float value) { return value == 0; }));
  }
}

TEST_CASE("packed sequences do not see each other", "[models]") {
  const ModelConfig config =
      config_of(GENERATE("bloom", "qwen2", "qwen3", "llama", "mistral", "phi3", "gpt_neox", "gpt2",
                         "olmo2", "gemma2", "gemma3"));
  Batch packed = random_batch(config, 1);
  packed.sequences = {.starts = at::tensor({0, 3, 8, 8}, at::kInt),
                      .longest = 5,
                      .positions = at::tensor({0, 1, 2, 0, 1, 2, 3, 4}, at::kInt)};
  std::vector<Batch> apart;
  for (const auto& [first, length] : {std::pair{0, 3}, std::pair{3, 5}}) {
    apart.push_back({.tokens = packed.tokens.narrow(1, first, length).contiguous(),
                     .labels = packed.labels.narrow(0, first, length),
                     .weights = packed.weights.narrow(0, first, length)});
  }
  const LanguageResult together = run(config, {packed}), alone = run(config, apart);
  CHECK(together.totals[0] == Approx(alone.totals[0]).epsilon(test::kPromised));
  CHECK(test::worst_difference(together.gradients, alone.gradients) < test::kPromised);
}

TEST_CASE("the head's loss is the cross entropy of its logits", "[models]") {
  const ModelConfig config =
      config_of(GENERATE("bloom", "qwen2", "qwen3", "llama", "mistral", "phi3", "gpt_neox", "gpt2",
                         "olmo2", "gemma2", "gemma3"));
  Model model = make_bound(config);
  const Batch batch = test::language_batch(model, 2);
  const Tensors state = before_head(model, batch);
  const at::NoGradGuard no_gradients;
  const at::Tensor logits = head_of(model).logits(state);
  CHECK(logits.sizes() == at::IntArrayRef{2 * kLanguageTokens, 50});
  const at::Tensor totals = at::zeros({kNumTotals});
  const at::Tensor loss = head_of(model).forward(state, batch, {.totals = totals}).at(0);
  const at::Tensor own =
      at::log_softmax(logits.to(at::kDouble), 1).gather(1, batch.labels.unsqueeze(1)).neg().sum();
  CHECK(loss.item<double>() == Approx(own.item<double>()).epsilon(test::kPromised));
  CHECK(totals[1].item<std::int64_t>() ==
        at::argmax(logits, 1).eq(batch.labels).sum().item<std::int64_t>());
}

TEST_CASE("generation gives the most likely token after each sample's last", "[models]") {
  const ModelConfig config =
      config_of(GENERATE("bloom", "qwen2", "qwen3", "llama", "mistral", "phi3", "gpt_neox", "gpt2",
                         "olmo2", "gemma2", "gemma3"));
  Model model = make_bound(config);
  const Batch batch = test::language_batch(model, 3);
  const Tensors state = before_head(model, batch);
  const at::NoGradGuard no_gradients;
  const at::Tensor logits = head_of(model).logits(state).view({3, kLanguageTokens, 50});
  const at::Tensor next = at::tensor({0, 7, 4}, at::kLong);
  (void)head_of(model).forward(state, batch, {.next_tokens = next});
  for (const auto& [sample, place] : {std::pair{0, 0}, std::pair{1, 7}, std::pair{2, 4}}) {
    CHECK(next[sample].item<std::int64_t>() ==
          at::argmax(logits[sample][place]).item<std::int64_t>());
  }
}

}  // namespace
}  // namespace dstrain
