#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/comm/thread_world.h"
#include "engine/models/weights.h"
#include "test/models/bind.h"
#include "test/models/language_batch.h"
#include "test/models/live_bytes.h"
#include "test/models/run_blocks.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

Batch image_batch(const Model& model, std::int64_t size) {
  return {.images = at::ones({size, model.channels, model.image_size, model.image_size}),
          .labels = at::zeros({size}, at::kLong),
          .weights = at::ones({size})};
}

TEST_CASE("every block of tensor ranks keeps exactly the bytes that its cost states",
          "[models][cost][tensor]") {
  // The vocabulary of 50 is cut by two ranks and whole on four, of which two share a key head.
  ModelConfig config = GENERATE(
      test::small_config(), test::small_gpt2_config(), test::small_qwen2_config(),
      test::small_qwen3_config(), test::small_llama_config(), test::small_qwen2_moe_config(),
      test::small_qwen3_moe_config(), test::small_mixtral_config(),
      test::small_tower_config("deit-tiny"), test::small_tower_config("dinov2-small"),
      test::small_tower_config("clip-vit-base-patch32"),
      test::small_tower_config("siglip-base-patch16-224"));
  const int ranks = GENERATE(2, 4);
  if (config.experts > 0) config.experts = 8;
  if (config.heads % ranks != 0) return;
  CAPTURE(config.name, ranks);
  constexpr int kSamples = 4;
  const BatchShape shape{.micro_batch = kSamples, .compute_bytes = 4};
  ThreadWorld world(ranks);
  std::mutex mutex;
  std::vector<std::string> wrong;
  std::optional<test::LiveBytes> memory;
  std::int64_t start = 0;
  world.run([&](int rank) {
    Model model = make_model(
        config,
        {.classes = 3,
         .sequence = 16,
         .splits = {.tensor = {.index = rank, .count = ranks}},
         // Rows of other ranks for the experts here are those of these for others on average.
         .experts = {.planned_load = 1}});
    test::bind_parameters(model, *make_random_weights(1));
    const Batch batch =
        model.is_language() ? test::language_batch(model, kSamples) : image_batch(model, kSamples);
    std::vector<int> all;
    for (int r = 0; r < ranks; ++r) all.push_back(r);
    const auto together = world.communicator({.name = "tensor", .ranks = all, .rank = rank});
    BlockContext context{.totals = at::zeros({kNumTotals}), .sample_seed = at::ones({})};
    context.peers.set(Axis::tensor, together.get());
    (void)test::run_model(model.blocks, batch, context, at::ones({}));
    Tensors before;
    for (const auto& block : model.blocks) {
      const BlockCost cost = block->cost(shape);
      together->barrier();
      if (rank == 0) {
        memory.emplace();
        start = memory->live();
      }
      together->barrier();
      test::BlockRun run = test::run_forward(*block, before, batch, context);
      together->barrier();
      if (rank == 0) {
        const std::int64_t kept = memory->live() - start;
        memory.reset();
        if (kept != ranks * (cost.saved_bytes + cost.boundary_bytes()))
          wrong.push_back(block->name() + ": " + std::to_string(kept / ranks) + " kept, " +
                          std::to_string(cost.saved_bytes + cost.boundary_bytes()) + " stated");
      }
      together->barrier();
      for (std::size_t t = 0; t < run.output.size(); ++t) {
        if (run.output[t].sizes() == at::IntArrayRef(cost.boundary.at(t).shape)) continue;
        const std::lock_guard lock(mutex);
        wrong.push_back(block->name() + ": another boundary");
      }
      before = run.output;
      for (at::Tensor& tensor : before) tensor = tensor.detach();
    }
  });
  CHECK(wrong == std::vector<std::string>{});
}

TEST_CASE("tensor ranks exchange what a model of images states", "[models][cost][tensor]") {
  const std::string name =
      GENERATE("deit-tiny", "clip-vit-base-patch32", "siglip-base-patch16-224");
  CAPTURE(name);
  constexpr int kRanks = 2;
  ThreadWorld world(kRanks);
  std::mutex mutex;
  world.run([&](int rank) {
    Model model =
        make_model(test::small_tower_config(name),
                   {.classes = 3, .splits = {.tensor = {.index = rank, .count = kRanks}}});
    test::bind_parameters(model, *make_random_weights(1));
    const CommunicatorOptions options{.name = "tensor", .ranks = {0, 1}, .rank = rank};
    const auto group = make_counting(world.communicator(options), options);
    BlockContext context{.totals = at::zeros({kNumTotals}), .sample_seed = at::ones({})};
    context.peers.set(Axis::tensor, group.get());
    (void)test::run_model(model.blocks, image_batch(model, 4), context, at::ones({}));
    std::map<std::string, Bytes> ran, stated;
    for (const CallCount& count : group->counts()) ran[count.operation] += count.bytes;
    for (const auto& block : model.blocks) {
      const BlockCost cost = block->cost({.micro_batch = 4, .compute_bytes = 4});
      for (const Exchange& exchange : cost.exchanges) {
        if (exchange.pass == ExchangePass::evaluate) continue;
        std::string operation = comm_name(exchange.op);
        std::ranges::replace(operation, '-', '_');
        stated[operation] += exchange.bytes;
      }
    }
    const std::scoped_lock lock(mutex);
    CHECK(ran == stated);
  });
}

TEST_CASE("tensor ranks are refused where layers or rows cannot be divided", "[models][tensor]") {
  const ModelConfig config = test::small_qwen2_config();
  const auto parts = [](int count) { return Splits{.tensor = {.index = 0, .count = count}}; };
  CHECK_NOTHROW((void)make_model(config, {.sequence = 8, .splits = parts(4)}));
  CHECK_THROWS_AS((void)make_model(config, {.sequence = 8, .splits = parts(3)}), Error);
  CHECK_THROWS_AS((void)make_model(config, {.sequence = 8, .splits = parts(8)}), Error);
  Model model = make_model(config, {.sequence = 6, .splits = parts(4)});
  CHECK_THROWS_AS((void)model_cost(model, {.micro_batch = 1}), Error);
  CHECK_NOTHROW((void)model_cost(model, {.micro_batch = 2}));
}

}  // namespace
}  // namespace dstrain
