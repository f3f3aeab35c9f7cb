#include "engine/infer/sampler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <map>
#include <vector>

#include "test/support/catch.h"

namespace dstrain {
namespace {

using Before = std::vector<std::span<const std::int64_t>>;

TEST_CASE("without a temperature the most likely token comes, with its probability", "[infer]") {
  const at::Tensor logits = at::tensor({1.0F, 3.0F, 2.0F, -1.0F}).view({1, 4});
  const Chosen chosen = choose_tokens(logits, {}, Before(1), std::vector<float>{0.5F});
  CHECK(chosen.tokens == std::vector<std::int64_t>{1});
  const double sum = std::exp(1.0) + std::exp(3.0) + std::exp(2.0) + std::exp(-1.0);
  CHECK(std::abs(chosen.log_probabilities[0] - (3 - std::log(sum))) < 1e-5);
}

TEST_CASE("tokens that came are less likely by the penalty, whatever their sign", "[infer]") {
  const at::Tensor logits = at::tensor({3.0F, 2.5F, -1.0F, 1.0F, 2.0F, -1.5F}).view({2, 3});
  const std::vector<std::int64_t> first = {0, 0}, second = {1};
  const Before before = {first, second};
  const Chosen chosen =
      choose_tokens(logits, {.repetition_penalty = 2.5}, before, std::vector<float>{0.5F, 0.5F});
  CHECK(chosen.tokens == std::vector<std::int64_t>{1, 0});
}

TEST_CASE("a draw inverts the sorted distribution", "[infer]") {
  // Probabilities 0.6, 0.3, 0.1 of tokens 2, 0, 1.
  const at::Tensor logits =
      at::tensor({std::log(0.3F), std::log(0.1F), std::log(0.6F)}).view({1, 3}).repeat({4, 1});
  const Chosen chosen = choose_tokens(logits, {.temperature = 1}, Before(4),
                                      std::vector<float>{0.01F, 0.59F, 0.61F, 0.999F});
  CHECK(chosen.tokens == std::vector<std::int64_t>{2, 2, 0, 1});
  const Chosen fewer = choose_tokens(logits, {.temperature = 1, .top_k = 2}, Before(4),
                                     std::vector<float>{0.01F, 0.66F, 0.68F, 0.999F});
  CHECK(fewer.tokens == std::vector<std::int64_t>{2, 2, 0, 0});
}

TEST_CASE("draws are spread evenly and follow from their place alone", "[infer]") {
  std::map<int, int> tenths;
  for (std::uint32_t token = 0; token < 10000; ++token) {
    const float draw = draw_for(42, 3, 1, token);
    REQUIRE((draw > 0 && draw < 1));
    ++tenths[static_cast<int>(draw * 10)];
  }
  for (const auto& [tenth, count] : tenths) CHECK((count > 850 && count < 1150));
  CHECK(draw_for(42, 3, 1, 7) == draw_for(42, 3, 1, 7));
  CHECK(draw_for(42, 3, 1, 7) != draw_for(42, 3, 2, 7));
  CHECK(draw_for(42, 3, 1, 7) != draw_for(42, 4, 1, 7));
  CHECK(draw_for(43, 3, 1, 7) != draw_for(42, 3, 1, 7));
}

}  // namespace
}  // namespace dstrain
