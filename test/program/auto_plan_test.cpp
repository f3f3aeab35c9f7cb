#include "engine/program/auto/auto_plan.h"

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>

#include "engine/base/error.h"
#include "engine/program/auto/auto_report.h"
#include "engine/program/auto/estimate.h"
#include "engine/recipe/load.h"
#include "test/program/models.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

/// The ViT-like model at `micro` samples.
ModelCost vit_like_model_of(int micro) {
  ModelCost cost = test::vit_like_model();
  const auto scaled = [micro](Bytes bytes) { return bytes * micro / 64; };
  for (BlockCost& block : cost.blocks) {
    block.forward_flops *= micro / 64.0;
    block.saved_bytes = scaled(block.saved_bytes);
    block.forward_workspace = scaled(block.forward_workspace);
    block.backward_workspace = scaled(block.backward_workspace);
    for (BoundaryTensor& tensor : block.boundary)
      tensor.shape.front() = std::max<Bytes>(scaled(tensor.shape.front()), 1);
    if (block.forward_flops < 1e9) continue;
    block.weight_flops = 0.8 * block.forward_flops;
    block.held_bytes = block.saved_bytes;
  }
  cost.batch_bytes = scaled(cost.batch_bytes);
  return cost;
}

/// Tensor ranks exchange the rows of each large block, forward and backward.
ModelCost exchanging(ModelCost cost, int tensor) {
  if (tensor == 1) return cost;
  for (BlockCost& block : cost.blocks) {
    if (block.forward_flops < 1e9) continue;
    for (const ExchangePass pass : {ExchangePass::forward, ExchangePass::backward}) {
      for (const CommOp op : {CommOp::all_gather, CommOp::reduce_scatter})
        block.exchanges.push_back({.op = op,
                                   .axis = Axis::tensor,
                                   .bytes = block.boundary_bytes(),
                                   .width = 2,
                                   .pass = pass});
    }
  }
  return cost;
}

/// Blocks of many kernels each, as those of convolutional models.
ModelCost of_kernels(ModelCost cost) {
  for (BlockCost& block : cost.blocks) {
    block.forward_kernels = {{.products = block.forward_flops, .launches = 40}};
    block.backward_kernels = {{.products = 2 * block.forward_flops, .launches = 80}};
  }
  return cost;
}

/// A recipe of images with `global` samples a step.
/// The quickstart computes in fp32; these cases are of exchanges beside products of 16 bits.
Machine at_one_rate() {
  Machine machine = h200();
  machine.fp32_flops_per_s = 0;
  return machine;
}

/// Four ranks on the CPU that share two cores.
Machine crowded_host() {
  Machine machine = cpu();
  machine.ranks_per_node = 4;
  machine.threads = 0;
  return machine;
}

struct Searched {
  int global = 256;
  Machine machine = at_one_rate();
  std::vector<std::string> others = {};  ///< settings
  bool kernels = false;                  ///< of_kernels

  [[nodiscard]] Recipe recipe(const std::vector<std::string>& settings) const {
    std::vector<std::string> all = settings;
    all.insert(all.end(), others.begin(), others.end());
    all.push_back("batch.global=" + std::to_string(global));
    return load_recipe("recipes/quickstart.yaml", all).recipe;
  }
  [[nodiscard]] PlanSource source() const {
    return {.recipe = [this](const auto& settings) { return recipe(settings); },
            .cost =
                [this](const Recipe& own) {
                  ModelCost cost =
                      exchanging(vit_like_model_of(own.batch.micro), own.parallel.tensor);
                  return kernels ? of_kernels(std::move(cost)) : cost;
                }};
  }
  [[nodiscard]] AutoPlan plan(int ranks, int top = 10) const {
    return search_plan(recipe({"batch.micro=1"}), source(), machine, {.ranks = ranks, .top = top});
  }
};

const AutoFamily* family_of(const AutoPlan& plan, const std::string& name) {
  const auto found = std::ranges::find(plan.families, name, &AutoFamily::name);
  return found == plan.families.end() ? nullptr : &*found;
}

TEST_CASE("choices of a search multiply to the ranks and keep tensor ranks in a node",
          "[program][auto]") {
  const SearchSpace space{
      .ranks = 48, .ranks_per_node = 8, .blocks = 10, .global = 256, .text = true};
  std::set<int> pipelines, tensors, sequences, micros;
  int beside = 0;
  for (const PlanChoice& choice : all_choices(space)) {
    if (choice.concurrent == 2) {
      CHECK((choice.degrees.pipeline == 1 && choice.degrees.tensor * choice.degrees.sequence > 1));
      CHECK(2 * choice.micro * choice.data_ranks(48) < 256 + 2 * choice.data_ranks(48));
      ++beside;
    }
    CHECK(choice.degrees.pipeline * choice.degrees.tensor * choice.degrees.sequence *
              choice.data_ranks(48) ==
          48);
    CHECK(choice.micro * choice.data_ranks(48) < 256 + choice.data_ranks(48) * choice.micro);
    CHECK((choice.shard == 0 || choice.data_ranks(48) % choice.shard == 0));
    pipelines.insert(choice.degrees.pipeline);
    tensors.insert(choice.degrees.tensor);
    sequences.insert(choice.degrees.sequence);
    micros.insert(choice.micro);
  }
  CHECK(beside > 50);
  SearchSpace serial = space;  // a CPU runs one lane after the other
  serial.lanes = false;
  CHECK(std::ranges::all_of(all_choices(serial), [](auto& c) { return c.concurrent == 1; }));
  CHECK(pipelines == std::set{1, 2, 3, 4, 6, 8});
  CHECK(tensors == std::set{1, 2, 3, 4, 6, 8});
  CHECK(*sequences.rbegin() == 48);
  CHECK(micros == std::set{1, 2, 4, 8, 16, 32, 64, 128, 256});
  const SearchSpace images{.ranks = 8, .blocks = 10, .global = 256};
  for (const PlanChoice& choice : all_choices(images)) CHECK(choice.degrees.sequence == 1);
}

TEST_CASE("no built step is shorter than the bound of its choice", "[program][auto]") {
  const Searched searched{.machine = GENERATE(at_one_rate(), crowded_host()),
                          .kernels = GENERATE(false, true)};
  const PlanSource source = searched.source();
  CostTables tables(source, searched.machine, 4);
  int compared = 0;
  for (PlanChoice choice :
       all_choices({.ranks = 4, .blocks = 14, .global = 256, .kernels = searched.kernels})) {
    PlanChoice largest = choice;
    largest.micro = 256;
    const BlockTable* blocks = tables.blocks(largest);
    if (blocks == nullptr || choice.micro < 8) continue;
    CAPTURE(describe(choice, 4), choice.zero_stage, choice.micro);
    const LayoutTable& layout = *tables.layout(choice);
    const Recipe recipe = tables.recipe(choice);
    const ModelCost& cost = tables.cost(choice, recipe);
    const Strategy strategy = make_strategy(recipe, cost, 4, searched.machine);
    const AutoRow row = simulated_row(choice, recipe, cost, strategy, searched.machine);
    const Bound bound =
        lower_bound(choice, *blocks, layout, strategy.batch.micro_batches, searched.machine);
    CHECK(bound.step_s <= row.step_s * 1.001);
    CHECK(bound.memory <= row.memory);
    const Estimate estimate =
        estimate_step(choice, recipe, cost, layout, strategy.batch.micro_batches, searched.machine);
    const double near = searched.machine.shares_memory ? 0.3 : choice.zero_stage == 3 ? 0.25 : 0.16;
    CHECK(estimate.step_s == Approx(row.step_s).epsilon(near));
    CHECK(row.compute_s + row.exchange_s + row.exposed_s + row.bubble_s + row.rest_s ==
          Approx(row.step_s));
    ++compared;
  }
  CHECK(compared > 40);
}

TEST_CASE("a search finds what trying all choices finds", "[program][auto]") {
  const Searched searched{.global = 64};
  const AutoPlan plan = searched.plan(4, 5);
  REQUIRE(plan.rows.size() == 5);
  double best = plan.rows.front().step_s;
  const PlanSource source = searched.source();
  CostTables tables(source, searched.machine, 4);
  for (const PlanChoice& choice : all_choices({.ranks = 4, .blocks = 14, .global = 64})) {
    if (tables.blocks(choice) == nullptr) continue;
    const Recipe recipe = tables.recipe(choice);
    const ModelCost& cost = tables.cost(choice, recipe);
    const Strategy strategy = make_strategy(recipe, cost, 4, searched.machine);
    best = std::min(best, simulated_row(choice, recipe, cost, strategy, searched.machine).step_s);
  }
  CHECK(plan.rows.front().step_s <= best * 1.02);
  // Steps within 1 % of the shortest are equal: the layouts of fewer axes come first.
  const double shortest = std::ranges::min(plan.rows, {}, &AutoRow::step_s).step_s;
  const auto place = [&](const AutoRow& row) {
    const PlanChoice& c = row.choice;
    const int axes = (c.degrees.pipeline > 1) + (c.degrees.tensor > 1) + (c.degrees.sequence > 1) +
                     (c.degrees.expert > 1);
    const bool equal = row.step_s <= 1.01 * shortest;
    return std::tuple(!equal, equal ? axes : 0, row.step_s);
  };
  CHECK(std::ranges::is_sorted(plan.rows, {}, place));
}

TEST_CASE("two micro-batches at once hide what tensor ranks exchange", "[program][auto]") {
  const Searched searched{.global = 64};
  const PlanSource source = searched.source();
  CostTables tables(source, searched.machine, 4);
  const auto row = [&](int concurrent) {
    const PlanChoice choice{.degrees = {.tensor = 4}, .micro = 16, .concurrent = concurrent};
    const Recipe recipe = tables.recipe(choice);
    const ModelCost& cost = tables.cost(choice, recipe);
    return simulated_row(choice, recipe, cost, make_strategy(recipe, cost, 4, searched.machine),
                         searched.machine);
  };
  const AutoRow one = row(1), two = row(2);
  CHECK(two.step_s < 0.9 * one.step_s);
  CHECK(two.exchange_s < 0.5 * one.exchange_s);
  CHECK(two.memory > one.memory);
  const AutoPlan plan = searched.plan(4, 3);
  const AutoFamily* tensor = family_of(plan, "tensor");
  const PlanChoice best =
      tensor != nullptr && tensor->best ? tensor->best->choice : plan.rows.front().choice;
  CHECK(best.concurrent == 2);
}

TEST_CASE("two micro-batches at once hide launches of kernels", "[program][auto]") {
  Searched searched{.global = 64, .kernels = true};
  const auto best = [&](int micro, int concurrent) {
    const AutoPlan plan = searched.plan(1, 20);
    const auto row = std::ranges::find_if(plan.rows, [&](const AutoRow& own) {
      return own.choice.micro == micro && own.choice.concurrent == concurrent;
    });
    return row == plan.rows.end() ? nullptr : std::make_unique<AutoRow>(*row);
  };
  const auto one = best(8, 1), two = best(8, 2);
  REQUIRE((one && two));
  CHECK(two->step_s < 0.95 * one->step_s);
  CHECK(two->exchange_s < 0.05 * two->step_s);
  searched.kernels = false;
  CHECK(best(8, 1));
  CHECK(!best(8, 2));
}

TEST_CASE("the time of link and cores is a part of estimates where states rest on the host",
          "[program][auto]") {
  const Searched searched{.global = 256, .others = {"memory.offload.optimizer=pinned"}};
  const PlanSource source = searched.source();
  CostTables tables(source, searched.machine, 2);
  int beside = 0;
  for (const PlanChoice& choice : all_choices({.ranks = 2, .blocks = 14, .global = 256})) {
    PlanChoice largest = choice;
    largest.micro = 256;
    const BlockTable* blocks = tables.blocks(largest);
    if (blocks == nullptr || choice.micro < 32) continue;
    CAPTURE(describe(choice, 2), choice.zero_stage, choice.micro);
    const Recipe recipe = tables.recipe(choice);
    const ModelCost& cost = tables.cost(choice, recipe);
    const Strategy strategy = make_strategy(recipe, cost, 2, searched.machine);
    beside += strategy.options.transient_slots ? 1 : 0;
    const AutoRow row = simulated_row(choice, recipe, cost, strategy, searched.machine);
    const Estimate estimate = estimate_step(choice, recipe, cost, *tables.layout(choice),
                                            strategy.batch.micro_batches, searched.machine);
    CHECK(estimate.step_s == Approx(row.step_s).epsilon(0.16));
    CHECK(lower_bound(choice, *blocks, *tables.layout(choice), strategy.batch.micro_batches,
                      searched.machine)
              .step_s <= row.step_s * 1.001);
  }
  CHECK(beside > 0);
}

TEST_CASE("4,096 ranks are searched with few simulations", "[program][auto]") {
  const AutoPlan plan = Searched{.global = 16384}.plan(4096);
  CHECK(plan.choices > 500);
  CHECK(plan.simulated <= 300);
  CHECK(plan.built <= 20);
  CHECK(plan.rows.size() == 10);
}

TEST_CASE("over many hosts states are shared within one, since rings over all have many hops",
          "[program][auto]") {
  Searched searched{.global = 16384};
  const auto step_s = [&searched](int shard) {
    const PlanChoice choice{.zero_stage = 1, .shard = shard, .micro = 4};
    const PlanSource source = searched.source();
    CostTables tables(source, searched.machine, 4096);
    const Recipe recipe = tables.recipe(choice);
    const ModelCost& cost = tables.cost(choice, recipe);
    const Strategy strategy = make_strategy(recipe, cost, 4096, searched.machine);
    return simulated_row(choice, recipe, cost, strategy, searched.machine).step_s;
  };
  CHECK(step_s(8) < 0.5 * step_s(0));
  searched.machine.hop_latency_s = 0;
  CHECK(step_s(8) >= step_s(0));
}

TEST_CASE("the default layouts are rows whatever their time", "[program][auto]") {
  const AutoPlan two = Searched{}.plan(2, 1);
  REQUIRE(two.rows.size() == 1);
  CHECK(two.rows.front().choice.degrees.pipeline == 1);
  REQUIRE(two.defaults.size() == 1);
  CHECK(two.defaults.front().choice.degrees.pipeline == 2);
  CHECK(two.defaults.front().choice.data_ranks(2) == 1);
  CHECK(two.defaults.front().bubble_s > 0);
  CHECK(two.defaults.front().step_s >= two.rows.front().step_s);
}

TEST_CASE("a search says why other layouts lost", "[program][auto]") {
  Searched searched;
  searched.machine.device_memory = Bytes{4} << 30;
  const AutoPlan plan = searched.plan(8);
  for (const AutoRow& row : plan.rows) CHECK(row.memory <= row.limit);
  const AutoFamily* tensor = family_of(plan, "tensor");
  REQUIRE(tensor != nullptr);
  if (!tensor->best) CHECK(tensor->reason.find("parallel.tensor") != std::string::npos);
  const std::string text = auto_text(plan, {.recipe = "r", .model = "vit-like"});
  CHECK(text.find("why others lost") != std::string::npos);

  searched.machine.device_memory = Bytes{1} << 30;
  CHECK_THROWS_WITH(searched.plan(8), Catch::Contains("no layout of 8 ranks can run this recipe") &&
                                          Catch::Contains("needs "));
}

TEST_CASE("the fragment of a row is a part of a recipe that plans the same step",
          "[program][auto]") {
  const Searched searched;
  const AutoPlan plan = searched.plan(4);
  const AutoRow& row = plan.rows.front();
  std::string text =
      "model: { name: vit-tiny }\ndata: { name: digits }\noptimizer: { lr: 1e-3 }\n"
      "run: { epochs: 1 }\nprecision: { compute: fp32 }\n";
  text += recipe_fragment(plan, row, {.recipe = "example", .model = "vit-like"});
  const Recipe recipe = parse_recipe(text, "fragment.yaml").recipe;
  const ModelCost cost = vit_like_model_of(recipe.batch.micro);
  const Strategy strategy = make_strategy(recipe, cost, 4, searched.machine);
  const AutoRow again = simulated_row(row.choice, recipe, cost, strategy, searched.machine);
  CHECK(again.memory == row.memory);
  CHECK(again.batch.micro == row.batch.micro);
  CHECK(again.batch.micro_batches == row.batch.micro_batches);
}

}  // namespace
}  // namespace dstrain
