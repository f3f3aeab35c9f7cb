#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/models/adapters.h"
#include "engine/models/model.h"
#include "test/models/bind.h"
#include "test/models/language_batch.h"
#include "test/models/run_blocks.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

constexpr int kTokens = 12;
constexpr std::int64_t kSamples = 3;

struct Result {
  double loss = 0;
  std::map<std::string, std::vector<float>> gradients;
};

struct StreamWork {
  ModelConfig config;
  bool adapters = false;
  bool inflated = false;  ///< the first layer's MLP writes numbers of about 3e5
};

/// Loss and gradients of random weights of `dtype`, by a model for fp16 or for another format.
Result run(const StreamWork& work, bool fp16, at::ScalarType dtype) {
  Model model = make_model(work.config, {.sequence = kTokens, .fp16 = fp16});
  if (work.adapters) {
    LoraConfig lora;
    lora.rank = 2;
    lora.targets = {"o_proj", "down_proj", "q_proj"};
    add_adapters(model, lora);
  }
  test::bind_parameters(model, *make_random_weights(4));
  for (Parameter* parameter : all_parameters(model)) {
    const std::string& name = parameter->parts.at(0).name;
    if (name.ends_with("lora_B.weight")) parameter->value.fill_(0.1);
    if (parameter->init == Init::normal) parameter->value.mul_(5);
    if (work.inflated && name.ends_with("layers.0.mlp.gate_proj.weight")) parameter->value.mul_(20);
    if (work.inflated && name.ends_with("layers.0.mlp.down_proj.weight")) parameter->value.mul_(1e4);
    parameter->value = parameter->value.to(dtype);
  }
  at::manual_seed(7);
  const Batch batch = test::language_batch(model, kSamples);
  const BlockContext context{.totals = at::zeros({kNumTotals}),
                             .sample_seed = at::full({}, 1.0 / kSamples, at::kFloat)};
  const auto rows = static_cast<double>(batch.weights.numel());
  (void)test::run_model(model.blocks, batch, context, at::full({}, 1 / rows));
  Result result;
  result.loss = test::floats(context.totals)[0] / rows;
  for (Parameter* parameter : all_parameters(model)) {
    if (!parameter->trainable) parameter->gradient.zero_();
  }
  result.gradients = test::part_values(model, &Parameter::gradient);
  return result;
}

}  // namespace

TEST_CASE("a model for fp16 has the loss and the gradients of one for fp32", "[models]") {
  StreamWork work;
  SECTION("Qwen2, tied") { work.config = test::small_qwen2_config(); }
  SECTION("Qwen3") { work.config = test::small_qwen3_config(); }
  SECTION("Llama") { work.config = test::small_llama_config(); }
  SECTION("experts, one of them shared") { work.config = test::small_qwen2_moe_config(); }
  SECTION("adapters") { work = {.config = test::small_qwen2_config(), .adapters = true}; }
  const Result plain = run(work, false, at::kFloat), scaled = run(work, true, at::kFloat);
  CHECK(std::abs(scaled.loss - plain.loss) < 1e-6 * plain.loss);
  CHECK(test::worst_difference(plain.gradients, scaled.gradients) < 1e-6);
}

TEST_CASE("what goes beyond the largest number of fp16 between layers stays finite", "[models]") {
  const StreamWork work{.config = test::small_qwen2_config(), .inflated = true};
  const Result exact = run(work, false, at::kFloat);
  CHECK(std::isfinite(exact.loss));
  CHECK_FALSE(std::isfinite(run(work, false, at::kHalf).loss));
  const Result scaled = run(work, true, at::kHalf);
  CHECK(std::abs(scaled.loss - exact.loss) < 1e-2 * exact.loss);
}

}  // namespace dstrain
