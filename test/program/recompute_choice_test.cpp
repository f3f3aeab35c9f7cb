#include "engine/program/recompute_choice.h"

#include "engine/program/plan_report.h"
#include "test/program/models.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::Case;

Bytes peak(const Case& c, const std::vector<bool>& blocks) {
  ProgramOptions options = c.options;
  options.recompute = blocks;
  return peak_memory(training_program(c.layout, c.cost, options)).total();
}

std::ptrdiff_t count_true(const std::vector<bool>& blocks) {
  return std::ranges::count(blocks, true);
}

Case vit_like(int stage, int shard, int micro_batches) {
  const ModelCost cost = test::vit_like_model();
  const Mesh mesh(shard, {.data = 1, .shard = shard});
  return {zero_layout(stage, mesh, cost, {}), cost, {.micro_batches = micro_batches}};
}

TEST_CASE("nothing is recomputed where the plan fits or no limit is known", "[recompute]") {
  const Case c = vit_like(3, 4, 2);
  const Bytes whole = peak(c, {});
  for (const Bytes limit : {Bytes{0}, whole, whole + 1}) {
    const RecomputeChoice choice = choose_recompute(c.layout, c.cost, c.options, {.bytes = limit});
    CHECK(count_true(choice.blocks) == 0);
    CHECK(choice.needed == whole);
    CHECK(choice.needed_without == whole);
  }
  CHECK(count_true(choose_recompute(c.layout, c.cost, c.options, {.bytes = whole - 1}).blocks) ==
        1);
  // What lies outside the allocator counts, too.
  const MemoryLimit outside = {.bytes = whole, .fixed = 1};
  CHECK(count_true(choose_recompute(c.layout, c.cost, c.options, outside).blocks) == 1);
}

TEST_CASE("outputs of activation functions are kept only where that fits", "[recompute]") {
  Case c = vit_like(3, 4, 2);
  for (BlockCost& block : c.cost.blocks) block.hidden_bytes = block.saved_bytes / 4;
  const Bytes whole = peak(c, {});
  c.options.keep_hidden = true;
  const Bytes with_hidden = peak(c, {});
  CHECK(with_hidden > whole + c.cost.blocks[1].hidden_bytes);
  const Program program = training_program(c.layout, c.cost, c.options);
  CHECK(check(program, c.layout, c.cost).empty());
  CHECK(program.keeps_hidden);
  CHECK_FALSE(evaluation_program(c.layout, c.cost, c.options).keeps_hidden);

  const auto choice = [&](Bytes limit) {
    return choose_recompute(c.layout, c.cost, c.options, {.bytes = limit});
  };
  const auto enough = static_cast<Bytes>(static_cast<double>(with_hidden) / kHiddenShare) + 1;
  CHECK(choice(enough).keep_hidden);
  CHECK(choice(enough).needed == with_hidden);
  CHECK(describe(choice(enough)).find("outputs of activation functions are kept") !=
        std::string::npos);
  CHECK_FALSE(choice(enough - 2).keep_hidden);
  CHECK(choice(enough - 2).needed == whole);
  CHECK(count_true(choice(enough - 2).blocks) == 0);
  CHECK(count_true(choice(whole - 1).blocks) == 1);
  CHECK_FALSE(choice(0).keep_hidden);
  c.options.keep_hidden = false;
  CHECK_FALSE(choice(enough).keep_hidden);
}

TEST_CASE("equal layers are recomputed from the first on, one for each that does not fit",
          "[recompute]") {
  const Case c = vit_like(0, 1, 1);
  const Bytes whole = peak(c, {}), layer = c.cost.blocks[1].saved_bytes;
  // The last one would free nothing: computed again it is all there while the others are gone.
  for (const int layers : {1, 5, 11}) {
    const RecomputeChoice choice =
        choose_recompute(c.layout, c.cost, c.options, {.bytes = whole - layers * layer});
    CAPTURE(layers);
    CHECK(count_true(choice.blocks) == layers);
    CHECK_FALSE(choice.blocks[0]);  // the stem frees fewer bytes per FLOP
    for (std::size_t block = 1; block <= static_cast<std::size_t>(layers); ++block)
      CHECK(choice.blocks[block]);
    CHECK(choice.needed == whole - layers * layer);
    CHECK(choice.needed_without == whole);
  }
}

TEST_CASE("a choice fits, and none of its blocks could be left out", "[recompute][property]") {
  const int stage = GENERATE(0, 1, 2, 3), blocks = GENERATE(1, 3, 6),
            micro_batches = GENERATE(1, 3);
  const int dear =
      GENERATE(-1, 0, 1);  // a block whose recomputation costs more than its place says
  Case c = test::make_case(stage, 2, 1, blocks, {.micro_batches = micro_batches});
  if (dear >= 0 && dear < blocks) c.cost.blocks[static_cast<std::size_t>(dear)].forward_flops *= 10;
  const Bytes whole = peak(c, {}), min = peak(c, test::recomputed(true));
  CAPTURE(stage, blocks, micro_batches, dear, whole, min);
  CHECK(min <= whole);
  for (Bytes limit = min; limit < whole; limit += 97) {
    const RecomputeChoice choice = choose_recompute(c.layout, c.cost, c.options, {.bytes = limit});
    CHECK(choice.needed == peak(c, choice.blocks));
    CHECK(choice.needed <= limit);
    for (std::size_t b = 0; b < choice.blocks.size(); ++b) {
      if (!choice.blocks[b]) continue;
      std::vector<bool> fewer = choice.blocks;
      fewer[b] = false;
      CHECK(peak(c, fewer) > limit);
    }
    ProgramOptions options = c.options;
    options.recompute = choice.blocks;
    CHECK(check(training_program(c.layout, c.cost, options), c.layout, c.cost).empty());
  }
  // What cannot fit recomputes all that frees anything, and says so.
  const RecomputeChoice choice = choose_recompute(c.layout, c.cost, c.options, {.bytes = min - 1});
  CHECK(count_true(choice.blocks) == blocks - 1);
  CHECK(choice.needed == min);
  CHECK(describe(choice).find("the plan still needs") != std::string::npos);
}

TEST_CASE("blocks before the first that trains anything are left alone", "[recompute]") {
  ModelCost cost = test::small_model_cost(4);
  cost.groups[0].trainable = cost.groups[1].trainable = false;
  const Layout layout = zero_layout(0, Mesh(1, {}), cost, {});
  const RecomputeChoice choice = choose_recompute(layout, cost, {}, {.bytes = 1});
  CHECK(choice.blocks == std::vector<bool>{false, false, true, false});
}

TEST_CASE("the limit is the recipe's, else the device's less the reserve", "[recompute]") {
  const Case c = vit_like(3, 4, 1);
  Recipe recipe;
  Machine machine = h200();
  machine.device_memory = Bytes{100} << 30;
  const Program program = training_program(c.layout, c.cost, c.options);
  const MemoryLimit device = memory_limit(recipe, program, c.layout, c.cost, machine);
  CHECK(device.bytes == Bytes{96} << 30);
  CHECK(device.fixed ==
        machine.product_workspace + machine.fixed_overhead + 3 * machine.communicator_overhead);
  CHECK(memory_limit(recipe, program, c.layout, c.cost, cpu()).bytes == 0);
  recipe.memory.limit = 1.5;
  CHECK(memory_limit(recipe, program, c.layout, c.cost, cpu()).bytes == Bytes{3} << 29);
  CHECK(memory_limit(recipe, program, c.layout, c.cost, machine).bytes == Bytes{3} << 29);
}

TEST_CASE("a recipe leaves the choice to the plan, which says what came of it", "[recompute]") {
  Recipe recipe;
  recipe.batch = {.global = 64, .micro = 64};
  recipe.memory.recompute = Recompute::automatic;
  const ModelCost cost = test::vit_like_model();
  Machine machine = h200();
  machine.device_memory = Bytes{6} << 30;
  const auto text = [&](int expected) {
    const Strategy s = make_strategy(recipe, cost, 1, machine);
    REQUIRE(s.recompute);
    CHECK(test::indices(s.training, ActionKind::recompute).size() ==
          static_cast<std::size_t>(expected));
    CHECK(test::indices(s.evaluation, ActionKind::recompute).empty());
    return plan_text(make_plan("example", recipe, s, cost, machine), s, cost);
  };
  const auto has = [](const std::string& all, const std::string& part) {
    CAPTURE(all);
    CHECK(all.find(part) != std::string::npos);
  };
  const std::string some = text(2);  // 0.36 GiB too much, 0.29 GiB a layer
  has(some, "recompute  2 of 13 blocks, as the plan needs 6.");
  has(some, " GiB of 5.76 GiB\n");
  has(some, "of 6.00 GiB on h200: fits");
  machine.device_memory = Bytes{10} << 30;
  has(text(0), "recompute  none, as the plan needs 6.");
  machine.device_memory = Bytes{2} << 30;
  const std::string none = text(13);
  has(none, "recompute  13 of 13 blocks, and the plan still needs ");
  has(none, "of 2.00 GiB on h200: DOES NOT FIT");
  machine = cpu();
  has(text(0), "recompute  none, as no limit of the memory is known");
  recipe.memory.limit = 5;
  has(text(3), "5.00 GiB on cpu: fits");
}

}  // namespace
}  // namespace dstrain
