#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "engine/base/error.h"
#include "engine/comm/thread_world.h"
#include "engine/models/language_head.h"
#include "engine/models/trainable.h"
#include "engine/models/upcycled_weights.h"
#include "engine/models/weights.h"
#include "test/models/bind.h"
#include "test/models/language_batch.h"
#include "test/models/run_blocks.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

using Values = std::map<std::string, std::vector<float>>;

constexpr std::int64_t kExpertsSamples = 4;
constexpr int kUpdates = 2;
constexpr double kRate = 0.1, kAllowed = 1e-5;

bool is_expert(const std::string& name) { return name.find(".experts.") != std::string::npos; }

/// Largest difference of a tensor's values over its largest value.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double apart = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    apart = std::max(apart, std::abs(double{a[i]} - double{b[i]}));
    largest = std::max(largest, std::abs(double{a[i]}));
    if (!std::isfinite(b[i])) return INFINITY;
  }
  return apart <= 1e-12 ? 0 : apart / largest;
}

double largest(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

bool is_router(const Parameter& parameter) {
  return parameter.parts.at(0).name.ends_with("mlp.gate.weight");
}

/// Sums of a step, and the gradients after them by name, of each of some updates.
struct Step {
  std::vector<float> totals;
  Values gradients;
};

struct ExpertsWork {
  ModelConfig config;
  int sequence = 0;
  bool same_choice = false;  ///< all tokens choose the first experts
  Batch batch;
};

ExpertsWork make_work(const ModelConfig& config, int sequence, bool same_choice) {
  at::manual_seed(7);
  const Model whole = make_model(config, {.sequence = sequence});
  ExpertsWork work{config, sequence, same_choice, test::language_batch(whole, kExpertsSamples)};
  work.batch.valid = at::full({}, kExpertsSamples, at::kInt);
  return work;
}

Batch part_of(const ExpertsWork& work, AxisPart part) {
  const std::int64_t samples = kExpertsSamples / part.count, rows = samples * work.sequence;
  return {.tokens = work.batch.tokens.narrow(0, part.index * samples, samples),
          .labels = work.batch.labels.narrow(0, part.index * rows, rows),
          .weights = work.batch.weights.narrow(0, part.index * rows, rows),
          .valid = at::full({}, samples, at::kInt)};
}

/// Steps of plain gradient descent of a rank with its part of samples and experts; `peers` is null
/// for one rank. Gradients of what all ranks hold are summed.
std::vector<Step> train(const ExpertsWork& work, AxisPart part, Communicator* peers) {
  Model model = make_model(work.config, {.sequence = work.sequence,
                                         .splits = {.tensor = {}, .sequence = {}, .expert = part},
                                         .experts = {.balance_loss = 0.1, .z_loss = 0.01}});
  test::bind_parameters(model, *make_random_weights(4));
  for (Parameter* parameter : all_parameters(model)) {
    if (parameter->init == Init::normal) parameter->value.mul_(10);
    if (work.same_choice && is_router(*parameter)) parameter->value.zero_();
  }
  const Batch batch = part_of(work, part);
  std::vector<Step> steps;
  for (int update = 0; update < kUpdates; ++update) {
    BlockContext context{.totals = at::zeros({kNumTotals}),
                         .sample_seed = at::full({}, 1.0 / kExpertsSamples, at::kFloat)};
    context.peers.set(Axis::expert, peers);
    (void)test::run_model(model.blocks, batch, context,
                          at::full({}, 1.0 / static_cast<double>(work.batch.weights.numel())));
    if (peers != nullptr) peers->all_reduce(context.totals, ReduceOp::sum);
    for (Parameter* parameter : all_parameters(model)) {
      if (peers != nullptr && !is_expert(parameter->parts.at(0).name))
        peers->all_reduce(parameter->gradient, ReduceOp::sum);
    }
    const auto totals = test::floats(context.totals);
    steps.push_back(
        {{totals.begin(), totals.end()}, test::part_values(model, &Parameter::gradient)});
    for (Parameter* parameter : all_parameters(model)) {
      // Experts that no row chose get equal gradients but for rounding: their scores stay equal, or
      // rounding would choose the next ones.
      if (!work.same_choice || !is_router(*parameter))
        parameter->value.sub_(parameter->gradient, kRate);
      parameter->gradient.zero_();
    }
  }
  return steps;
}

/// The same by `ranks` threads; the gradients of all experts together.
std::vector<Step> train_among(const ExpertsWork& work, int ranks) {
  ThreadWorld world(ranks);
  std::mutex mutex;
  std::vector<Step> all(kUpdates);
  std::vector<int> everyone;
  for (int rank = 0; rank < ranks; ++rank) everyone.push_back(rank);
  world.run([&](int rank) {
    const auto peers = world.communicator({.name = "experts", .ranks = everyone, .rank = rank});
    const std::vector<Step> own = train(work, {rank, ranks}, peers.get());
    const std::lock_guard lock(mutex);
    for (std::size_t s = 0; s < own.size(); ++s) {
      all[s].totals = own[s].totals;
      all[s].gradients.insert(own[s].gradients.begin(), own[s].gradients.end());
    }
  });
  return all;
}

TEST_CASE("ranks that share the experts train as one rank", "[models][experts]") {
  ModelConfig config = GENERATE(test::small_qwen2_moe_config(), test::small_qwen3_moe_config());
  const int ranks = GENERATE(2, 4), sequence = GENERATE(1, 9);
  config.experts = GENERATE(4, 8);
  const bool same_choice = GENERATE(false, true);
  CAPTURE(config.name, ranks, sequence, config.experts, same_choice);
  const ExpertsWork work = make_work(config, sequence, same_choice);
  const std::vector<Step> one = train(work, {}, nullptr), several = train_among(work, ranks);
  for (std::size_t s = 0; s < one.size(); ++s) {
    CAPTURE(s);
    for (std::size_t i = 0; i < one[s].totals.size(); ++i)
      CHECK(several[s].totals[i] == Approx(one[s].totals[i]).epsilon(kAllowed));
    REQUIRE(several[s].gradients.size() == one[s].gradients.size());
    double scale = 0;
    for (const auto& [name, values] : one[s].gradients) scale = std::max(scale, largest(values));
    for (const auto& [name, values] : one[s].gradients) {
      CAPTURE(name);
      // A single key has the weight 1 whatever its score: what scores are made of has no gradient
      // but rounding, which is another one for other numbers of rows.
      if (sequence == 1 && (contains(name, ".q_") || contains(name, ".k_"))) {
        CHECK(largest(values) < kAllowed * scale);
        CHECK(largest(several[s].gradients.at(name)) < kAllowed * scale);
        continue;
      }
      // After an update the weights, too, differ by what rounding did before.
      CHECK(difference(values, several[s].gradients.at(name)) < (s == 0 ? 1 : 5) * kAllowed);
    }
  }
}

TEST_CASE("the balance loss is counted in training only, and not again when a block is recomputed",
          "[models][experts]") {
  const ExpertsWork work = make_work(test::small_qwen2_moe_config(), 6, false);
  Model model = make_model(work.config, {.sequence = work.sequence});
  test::bind_parameters(model, *make_random_weights(4));
  const at::NoGradGuard no_gradients;
  const auto counted = [&](Mode mode, const at::Tensor& lengths) {
    BlockContext context{
        .mode = mode, .totals = at::zeros({kNumTotals}), .sample_seed = at::ones({})};
    Batch batch = work.batch;
    batch.lengths = lengths;
    Tensors state;
    for (std::size_t i = 0; i + 1 < model.blocks.size(); ++i)
      state = model.blocks[i]->forward(state, batch, context);
    return context.totals[kBalanceTotal].item<double>();
  };
  const at::Tensor whole = at::full({kExpertsSamples}, work.sequence, at::kInt);
  at::Tensor fillers = at::zeros_like(whole);
  fillers[0] = work.sequence;
  const double all = counted(Mode::train, whole), first = counted(Mode::train, fillers);
  // Two choices of a token: at least 2 for each sample.
  CHECK(all >= 2 * kExpertsSamples - 1e-5);
  CHECK(first >= 2 - 1e-5);
  CHECK(first < all);
  // A sample of one token is what it is alone, however it is filled up.
  at::Tensor short_one = fillers.clone();
  short_one[0] = 1;
  CHECK(counted(Mode::train, short_one) != Approx(first));
  CHECK(counted(Mode::recompute, whole) == 0);
  CHECK(counted(Mode::evaluate, whole) == 0);
}

/// Next tokens' logits for `tokens`.
at::Tensor language_logits(Model& model, const Batch& batch) {
  const at::NoGradGuard no_gradients;
  Tensors state;
  for (std::size_t i = 0; i + 1 < model.blocks.size(); ++i)
    state = model.blocks[i]->forward(state, batch, {});
  return dynamic_cast<LanguageHead&>(*model.blocks.back()).logits(state);
}

TEST_CASE("a dense model made into experts computes the same, also from its own files",
          "[models][experts]") {
  constexpr int kTokens = 7;
  const int chosen = GENERATE(1, 2, 4);
  CAPTURE(chosen);
  ModelConfig dense_config = test::small_qwen2_config();
  dense_config.mlp_width = 32;
  Model dense = make_model(dense_config, {.sequence = kTokens});
  test::bind_parameters(dense, *make_random_weights(4));
  for (Parameter* parameter : all_parameters(dense)) parameter->value.mul_(10);
  const test::TempDir dense_folder, experts_folder;
  Values values = test::part_values(dense, &Parameter::value);
  export_weights(dense_folder.path(), dense, test::reader_of(values), {});

  ModelConfig config = test::small_qwen2_moe_config();
  config.weights = dense_folder.path().string();
  config.experts = 2 * chosen;
  config.experts_per_token = chosen;
  config.expert_width = 16 / chosen;
  config.shared_width = 16;
  Model experts = make_model(config, {.sequence = kTokens, .experts = {.upcycle = true}});
  std::vector<std::string> notes;
  test::bind_parameters(experts, *open_upcycled_weights(config, experts, 1, notes));
  CHECK(notes.empty());
  const Batch batch = test::language_batch(dense, kExpertsSamples);
  const at::Tensor expected = language_logits(dense, batch),
                   found = language_logits(experts, batch);
  const double largest = expected.abs().max().item<double>();
  CHECK((found - expected).abs().max().item<double>() <= kAllowed * largest);

  // Both groups of experts are chosen, each as a whole.
  const at::Tensor router = test::parameter_named(experts, "model.layers.1.mlp.gate.weight").value;
  for (std::int64_t e = 0; e < 2 * chosen; ++e) CHECK(router[e].equal(router[e / chosen * chosen]));
  CHECK_FALSE(router[0].equal(router[chosen]));

  values = test::part_values(experts, &Parameter::value);
  export_weights(experts_folder.path(), experts, test::reader_of(values), {});
  ModelConfig again_config;
  again_config.weights = experts_folder.path().string();
  Model again = make_model(again_config, {.sequence = kTokens});
  test::bind_parameters(again, *open_weights(again_config.weights, again, 0, notes));
  CHECK(language_logits(again, batch).equal(found));
}

/// Writes a small dense model; returns its tensors.
Values export_small_dense(const std::filesystem::path& folder) {
  Model dense = make_model(test::small_qwen2_config(), {.sequence = 4});
  test::bind_parameters(dense, *make_random_weights(4));
  Values values = test::part_values(dense, &Parameter::value);
  export_weights(folder, dense, test::reader_of(values), {});
  return values;
}

TEST_CASE("parts of an upcycled tensor are those of the whole", "[models][experts]") {
  const test::TempDir folder;
  (void)export_small_dense(folder.path());
  ModelConfig config = test::small_qwen2_moe_config();
  config.weights = folder.path().string();
  config.expert_width = 6;
  config.shared_width = 12;
  const Model experts = make_model(config, {.sequence = 4, .experts = {.upcycle = true}});
  std::vector<std::string> notes;
  const auto source = open_upcycled_weights(config, experts, 1, notes);
  for (const Parameter* parameter : all_parameters(experts)) {
    CAPTURE(parameter->parts.front().name);
    const std::int64_t size = parameter->numel();
    std::vector<float> whole(static_cast<std::size_t>(size));
    source->read(*parameter, {0, size}, whole);
    for (std::int64_t begin = 0; begin < size; begin += 37) {
      const std::int64_t end = std::min<std::int64_t>(begin + 37, size);
      std::vector<float> part(static_cast<std::size_t>(end - begin));
      source->read(*parameter, {begin, end}, part);
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + begin));
    }
  }
}

TEST_CASE("adapters of an upcycled model are drawn, its weights are the dense model's",
          "[models][experts]") {
  const test::TempDir folder;
  const Values values = export_small_dense(folder.path());
  Recipe recipe;
  recipe.model = test::small_qwen2_moe_config();
  recipe.model.weights = folder.path().string();
  recipe.model.expert_width = 6;
  recipe.model.shared_width = 12;
  recipe.experts.upcycle = true;
  recipe.lora.rank = 2;
  recipe.lora.targets = {"q_proj", "down_proj"};
  Model model = make_trainable_model(recipe, {.sequence = 4});
  std::vector<std::string> notes;
  test::bind_parameters(model, *first_weights(recipe, model, notes));
  const Values found = test::part_values(model, &Parameter::value);
  Model plain = make_trainable_model(recipe, {.sequence = 4});
  test::bind_parameters(plain, *make_random_weights(recipe.run.seed));
  int adapters = 0;
  for (const auto& [name, drawn] : test::part_values(plain, &Parameter::value)) {
    CAPTURE(name);
    if (name.find("lora_") != std::string::npos) {
      CHECK(found.at(name) == drawn);
      ++adapters;
    } else if (values.contains(name)) {
      CHECK(found.at(name) == values.at(name));
    }
  }
  CHECK(adapters > 0);
}

TEST_CASE("a mixture that the dense model does not fit is refused with all sizes",
          "[models][experts]") {
  const test::TempDir folder;
  (void)export_small_dense(folder.path());
  ModelConfig config = test::small_qwen2_moe_config();
  config.weights = folder.path().string();
  config.layers = 3;
  config.experts = 7;
  try {
    (void)make_model(config, {.sequence = 4, .experts = {.upcycle = true}});
    FAIL("no error");
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK(error.kind() == ErrorKind::usage);
    for (const char* part :
         {"model.layers: 3",
          "model.shared_width: 20 is not half of the dense "
          "MLP's 24",
          "model.expert_width: 12 times", "model.experts: 7 is not a multiple"}) {
      CAPTURE(part, text);
      CHECK(text.find(part) != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace dstrain
