#include "engine/infer/writer.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "engine/models/trainable.h"
#include "test/models/bind.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

constexpr int kVocabulary = 50;

/// Each token is a letter of its own.
std::shared_ptr<const Tokenizer> letters() {
  std::string vocab;
  for (int i = 0; i < kVocabulary; ++i)
    vocab += fmt::format(R"({}"{}":{})", i == 0 ? "" : ",",
                         static_cast<char>('A' + i == '\\' ? '!' : 'A' + i), i);
  return Tokenizer::parse(
      R"({"model":{"type":"BPE","vocab":{)" + vocab + R"(},"merges":[]},)"
      R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},)"
      R"("decoder":{"type":"ByteLevel"}})",
      "", "tokenizer.json");
}

using Answer = std::tuple<std::size_t, int, std::string, int, std::string, double>;

TEST_CASE("answers are the same whether steps start before the last tokens are known") {
  const at::NoGradGuard no_gradients;
  Recipe recipe;
  recipe.model = test::small_qwen2_config();
  Model model = make_trainable_model(recipe, {.sequence = 32});
  test::bind_parameters(model, *make_random_weights(4));
  for (Parameter* parameter : all_parameters(model)) {
    if (parameter->init == Init::normal) parameter->value.mul_(12);
  }
  std::vector<std::vector<std::int64_t>> prompts;
  for (std::int64_t i = 0; i < 7; ++i) {
    std::vector<std::int64_t> prompt;
    for (std::int64_t token = 0; token <= i * 3 % 13; ++token)
      prompt.push_back((7 * i + 11 * token) % kVocabulary);
    prompts.push_back(prompt);
  }
  const auto tokenizer = letters();
  WriteOptions options;
  options.max_tokens = GENERATE(2, 16);
  options.samples = GENERATE(1, 2);
  // Some answers end by it, at different steps.
  options.stop_tokens = {3, 17, 30, 41};
  const std::int64_t slots = GENERATE(1, 3, 20);
  const auto write = [&](bool ahead) {
    CachedModel cached(model, at::kCPU, at::kFloat, slots, /*capacity=*/16);
    CachedModel* const models[] = {&cached};
    options.ahead = ahead;
    std::vector<Answer> answers;
    write_answers(models, *tokenizer, prompts, options, [&](const WrittenAnswer& answer) {
      answers.emplace_back(answer.prompt, answer.sample, answer.text, answer.tokens,
                           std::string(answer.ended), answer.log_probability);
    });
    std::ranges::sort(answers);
    return answers;
  };
  const std::vector<Answer> at_once = write(false), ahead = write(true);
  REQUIRE(at_once.size() == prompts.size() * static_cast<std::size_t>(options.samples));
  REQUIRE(at_once.size() == ahead.size());
  for (std::size_t i = 0; i < ahead.size(); ++i) {
    CAPTURE(i, options.max_tokens, options.samples, slots);
    const auto& [prompt, sample, text, tokens, ended, log_probability] = at_once[i];
    REQUIRE(std::tie(prompt, sample, text, tokens, ended) ==
            std::tie(std::get<0>(ahead[i]), std::get<1>(ahead[i]), std::get<2>(ahead[i]),
                     std::get<3>(ahead[i]), std::get<4>(ahead[i])));
    REQUIRE(std::abs(log_probability - std::get<5>(ahead[i])) < 1e-3);
  }
  if (options.max_tokens < 16) return;
  const auto ends = [&](std::string_view how) {
    return std::ranges::count_if(
        at_once, [how](const Answer& answer) { return std::get<4>(answer) == how; });
  };
  REQUIRE(ends("stop") > 0);
  REQUIRE(ends("room") + ends("length") > 0);
}

}  // namespace
}  // namespace dstrain
