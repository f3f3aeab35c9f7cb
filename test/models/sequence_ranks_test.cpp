#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include "engine/base/error.h"
#include "engine/comm/thread_world.h"
#include "engine/kernels/attention/sequence_attention.h"
#include "engine/mesh/zigzag.h"
#include "engine/models/trainable.h"
#include "test/kernels/plain_attention.h"
#include "test/models/bind.h"
#include "test/models/language_batch.h"
#include "test/models/live_bytes.h"
#include "test/models/run_blocks.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"

/// Models whose samples are spread over ranks, which are threads, against one rank.
namespace dstrain {
namespace {

using Values = std::map<std::string, std::vector<float>>;

constexpr int kSequenceTokens = 24;
constexpr std::int64_t kSequenceSamples = 2;

struct SequenceWork {
  ModelConfig config;
  SequenceExchange exchange = SequenceExchange::gather;
  bool adapters = false;  ///< with dropout
  bool packed = false;
};

Model make_bound(const SequenceWork& work, const AxisPart& part) {
  Recipe recipe;
  recipe.model = work.config;
  if (work.adapters) {
    recipe.lora.rank = 2;
    recipe.lora.dropout = 0.3;
  }
  Model model = make_trainable_model(
      recipe,
      {.sequence = kSequenceTokens, .splits = {.sequence = part, .exchange = work.exchange}});
  test::bind_parameters(model, *make_random_weights(4));
  for (Parameter* parameter : all_parameters(model)) {
    if (parameter->init == Init::normal) parameter->value.mul_(8);
    if (parameter->parts[0].name.ends_with("lora_B.weight"))
      parameter->value.copy_(at::arange(parameter->value.numel())
                                 .remainder(7)
                                 .sub(3)
                                 .mul(0.1)
                                 .view(parameter->value.sizes()));
  }
  return model;
}

Batch whole_batch(const SequenceWork& work) {
  at::manual_seed(5);
  Batch batch = test::language_batch(make_bound(work, {}), kSequenceSamples);
  batch.weights.view({kSequenceSamples, kSequenceTokens}).select(0, 1).narrow(0, 9, 15).zero_();
  if (work.packed) batch.sequences = test::pack({13, 1, 10, 24}, 2);
  return batch;
}

Batch own_batch(const Batch& whole, const AxisPart& part) {
  const Zigzag zigzag{.ranks = part.count, .rank = part.index};
  const std::int64_t rows = kSequenceSamples * kSequenceTokens / part.count;
  const at::Tensor places = at::empty({rows}, at::kInt);
  for (std::int64_t row = 0; row < rows; ++row)
    places.mutable_data_ptr<std::int32_t>()[row] =
        static_cast<std::int32_t>(zigzag.whole_row(row, kSequenceTokens));
  const auto of = [&](const at::Tensor& all) { return all.index_select(0, places); };
  return {
      .tokens = of(whole.tokens.view(-1)).view({kSequenceSamples, kSequenceTokens / part.count}),
      .labels = of(whole.labels),
      .weights = of(whole.weights),
      .sequences = whole.sequences,
      .own = {.rows = places,
              .positions = whole.sequences.starts.defined() ? of(whole.sequences.positions)
                                                            : places.remainder(kSequenceTokens)}};
}

struct RanksResult {
  Values gradients;
  std::vector<double> totals = std::vector<double>(kNumTotals);
  at::Tensor next = {};
  std::map<std::string, Bytes> exchanged = {};
};

void add(RanksResult& sum, Model& model, const at::Tensor& totals) {
  for (const auto& [name, values] : test::part_values(model, &Parameter::gradient)) {
    std::vector<float>& all = sum.gradients[name];
    all.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) all[i] += values[i];
  }
  for (std::size_t i = 0; i < sum.totals.size(); ++i)
    sum.totals[i] += double{test::floats(totals)[i]};
}

BlockContext context_of(const SequenceWork& work) {
  BlockContext context{.totals = at::zeros({kNumTotals})};
  if (work.adapters) context.dropout_seed = at::full({}, 11, at::kLong);
  return context;
}

at::Tensor next_tokens(Model& model, const Batch& batch, BlockContext context) {
  const at::NoGradGuard no_gradients;
  context.mode = Mode::generate;
  context.next_tokens = at::arange(kSequenceSamples, at::kLong) * 10 + 7;
  Tensors state;
  for (const auto& block : model.blocks) state = block->forward(state, batch, context);
  return context.next_tokens;
}

RanksResult alone(const SequenceWork& work, const Batch& batch) {
  Model model = make_bound(work, {});
  const BlockContext context = context_of(work);
  (void)test::run_model(model.blocks, batch, context, at::ones({}));
  RanksResult result;
  add(result, model, context.totals);
  result.next = next_tokens(model, batch, context);
  return result;
}

/// Bytes of each kind of collective that the model's costs state for training.
std::map<std::string, Bytes> stated(const Model& model) {
  std::map<std::string, Bytes> bytes;
  for (const auto& block : model.blocks) {
    const BlockCost cost = block->cost({.micro_batch = kSequenceSamples, .compute_bytes = 4});
    for (const Exchange& exchange : cost.exchanges) {
      CHECK(exchange.axis == Axis::sequence);
      std::string name = comm_name(exchange.op);
      std::ranges::replace(name, '-', '_');
      bytes[name] += exchange.bytes;
    }
  }
  return bytes;
}

RanksResult over_ranks(const SequenceWork& work, const Batch& batch, int ranks) {
  RanksResult sum;
  std::mutex mutex;
  ThreadWorld world(ranks);
  world.run([&](int rank) {
    at::set_num_threads(1);
    const AxisPart part{.index = rank, .count = ranks};
    CommunicatorOptions options;
    options.name = "sequence";
    options.rank = rank;
    options.ranks.resize(static_cast<std::size_t>(ranks));
    std::iota(options.ranks.begin(), options.ranks.end(), 0);
    const auto group = make_counting(world.communicator(options), options);
    Model model = make_bound(work, part);
    const Batch own = own_batch(batch, part);
    BlockContext context = context_of(work);
    context.peers.set(Axis::sequence, group.get());
    (void)test::run_model(model.blocks, own, context, at::ones({}));
    std::map<std::string, Bytes> exchanged;
    for (const CallCount& count : group->counts()) exchanged[count.operation] += count.bytes;
    const at::Tensor next = next_tokens(model, own, context);
    const std::scoped_lock lock(mutex);
    CHECK(exchanged == stated(model));
    add(sum, model, context.totals);
    if (sum.next.defined()) CHECK(next.equal(sum.next));
    sum.next = next;
  });
  return sum;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    squares += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
  return std::sqrt(squares);
}

void check_equal(const RanksResult& found, const RanksResult& expected) {
  CHECK(found.totals[0] == Approx(expected.totals[0]).epsilon(1e-6));
  CHECK(found.totals[1] == expected.totals[1]);
  CHECK(found.totals[3] == expected.totals[3]);
  CHECK(found.next.equal(expected.next));
  double largest = 0;
  for (const auto& [name, values] : expected.gradients)
    largest = std::max(largest, distance(values, std::vector<float>(values.size())));
  for (const auto& [name, values] : expected.gradients) {
    CAPTURE(name);
    // Those of key biases are zero but for rounding.
    const double norm = distance(values, std::vector<float>(values.size()));
    CHECK(distance(values, found.gradients.at(name)) <= 2e-5 * std::max(norm, 1e-3 * largest));
  }
}

TEST_CASE("samples spread over ranks give loss, gradients and next tokens of one rank",
          "[models][sequence]") {
  SequenceWork work{.config = GENERATE(test::small_bloom_config(), test::small_gpt2_config(),
                                       test::small_qwen2_config(), test::small_qwen3_config(),
                                       test::small_gemma2_config(), test::small_gemma3_config()),
                    .exchange = GENERATE(SequenceExchange::gather, SequenceExchange::heads),
                    .adapters = GENERATE(false, true),
                    .packed = GENERATE(false, true)};
  const int ranks = GENERATE(2, 3, 4);
  const bool six_heads = work.config.name == "bloom-560m" || work.config.name == "gpt2";
  CAPTURE(work.config.name, work.exchange, work.adapters, work.packed, ranks);
  const bool fits =
      work.exchange == SequenceExchange::gather || ranks == 2 || (six_heads && ranks == 3);
  if (!fits) {
    CHECK_THROWS_WITH(make_bound(work, {.index = 0, .count = ranks}),
                      Catch::Contains("parallel.sequence_attention: heads"));
    return;
  }
  const Batch batch = whole_batch(work);
  const RanksResult expected = alone(work, batch);
  REQUIRE(expected.totals[3] == 33);
  check_equal(over_ranks(work, batch, ranks), expected);
}

TEST_CASE("attention over ranks keeps the bytes that attention states", "[models][cost]") {
  const ops::AttentionShape shape{
      .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .causal = true, .rope_theta = 1e4};
  constexpr std::int64_t kRows = 2 * 64;
  const auto one = make_communicator(nullptr, {.name = "alone", .ranks = {0}});
  const ops::OwnRows own{.rows = at::arange(kRows, at::kInt),
                         .positions = at::arange(kRows, at::kInt).remainder(64)};
  const auto attend = [&] {
    const at::Tensor qkv = at::ones({kRows, shape.qkv_width()}).requires_grad_(true);
    return ops::gathered_attention(qkv, shape, {}, own, *one);
  };
  (void)attend();  // makes the table of rotary positions
  test::LiveBytes memory;
  const std::int64_t start = memory.live();
  const at::Tensor out = attend();
  CHECK(memory.live() - start == ops::attention_saved_bytes(shape, kRows, 4));
}

TEST_CASE("a rank of a split sequence states its part of rows and of attention", "[models][cost]") {
  const auto exchange = GENERATE(SequenceExchange::gather, SequenceExchange::heads);
  const auto cost_of = [&](int ranks) {
    Model model =
        make_model(test::small_qwen2_config(),
                   {.sequence = kSequenceTokens,
                    .splits = {.sequence = {.index = 0, .count = ranks}, .exchange = exchange}});
    return model_cost(model, {.micro_batch = 2, .compute_bytes = 2});
  };
  const ModelCost whole = cost_of(1), half = cost_of(2);
  REQUIRE(whole.blocks.size() == half.blocks.size());
  for (std::size_t b = 0; b < whole.blocks.size(); ++b) {
    CHECK(half.blocks[b].forward_flops == whole.blocks[b].forward_flops / 2);
    CHECK(half.blocks[b].saved_bytes == whole.blocks[b].saved_bytes / 2);
    CHECK(half.blocks[b].exchanges.empty() == (b == 0 || b + 1 == whole.blocks.size()));
  }
  CHECK(half.blocks[0].boundary_bytes() == whole.blocks[0].boundary_bytes() / 2);
}

}  // namespace
}  // namespace dstrain
