#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/program/plan_report.h"
#include "engine/program/program_text.h"
#include "test/program/models.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

struct Planned {
  ModelCost cost = test::vit_like_model();
  Recipe recipe;
  int world = 1;

  [[nodiscard]] Strategy strategy() const { return strategy(h200()); }
  [[nodiscard]] Strategy strategy(const Machine& machine) const {
    return make_strategy(recipe, cost, world, machine);
  }
  [[nodiscard]] std::string text(const Machine& machine = h200()) const {
    const Strategy s = strategy(machine);
    return plan_text(make_plan("example", recipe, s, cost, machine), s, cost);
  }
};

Planned planned(int stage, int world, int global) {
  Planned p;
  p.recipe.model.name = "vit-like";
  p.recipe.batch = {.global = global, .micro = 64};
  p.recipe.parallel.zero.stage = stage;
  p.world = world;
  return p;
}

/// The text in test/golden/plans/`name`.txt; DSTRAIN_UPDATE_GOLDEN=1 rewrites the file, and the
/// diff is the review.
void check_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path file = std::filesystem::path("test/golden/plans") / (name + ".txt");
  if (std::getenv("DSTRAIN_UPDATE_GOLDEN") != nullptr) std::ofstream(file) << text;
  std::stringstream expected;
  expected << std::ifstream(file).rdbuf();
  CAPTURE(file.string());
  CHECK(text == expected.str());
}

TEST_CASE("plans read as they did", "[plan][golden]") {
  check_golden("one_rank", planned(0, 1, 512).text());
  check_golden("ddp_4", planned(0, 4, 512).text());
  check_golden("zero1_4", planned(1, 4, 512).text());
  check_golden("zero2_4_filled", planned(2, 4, 500).text());
  Planned recomputed = planned(3, 4, 256);
  recomputed.recipe.memory.recompute = Recompute::blocks;
  check_golden("zero3_4_recompute", recomputed.text());
  Planned copies = planned(3, 4096, 4096 * 64);
  copies.recipe.parallel.zero.shard = 8;
  copies.recipe.precision.reduce = ReduceType::bf16;
  check_golden("zero3_4096", copies.text());
  Planned pipeline = planned(1, 8, 2048);
  for (BlockCost& block : pipeline.cost.blocks) {
    if (block.forward_flops < 1e11) continue;  // of a layer
    block.weight_flops = 0.8 * block.forward_flops;
    block.held_bytes = block.saved_bytes;
  }
  pipeline.recipe.parallel.pipeline = 4;
  check_golden("pipeline_4_zero1_2", pipeline.text());
}

TEST_CASE("a program reads as it did", "[plan][golden]") {
  const Planned sharded = planned(2, 2, 256);
  const Strategy s = sharded.strategy();
  check_golden("program_zero2_2", program_text(s.training, s.layout, sharded.cost));
}

TEST_CASE("a plan that does not fit says so", "[plan]") {
  Machine small = h200();
  small.device_memory = Bytes{4} << 30;
  CHECK(planned(0, 1, 512).text(small).find("4.00 GiB on h200: DOES NOT FIT") != std::string::npos);
  CHECK(planned(0, 1, 512).text().find("139.80 GiB on h200: fits") != std::string::npos);
}

TEST_CASE("auto keeps outputs of activation functions on all stages or on none", "[plan]") {
  Planned p = planned(0, 2, 512);
  p.recipe.parallel.pipeline = GENERATE(1, 2);
  p.recipe.memory.recompute = Recompute::automatic;
  const Strategy without = p.strategy();
  CHECK_FALSE(without.training.keeps_hidden);
  // Only some blocks keep less, and a stage may have none of them.
  for (std::size_t b = 1; b < 5; ++b)
    p.cost.blocks[b].hidden_bytes = p.cost.blocks[b].saved_bytes / 2;
  const Strategy with = p.strategy();
  const auto peak = [](const Strategy& s, std::size_t stage) {
    return peak_memory(s.line.at(stage)).total();
  };
  for (std::size_t stage = 0; stage < with.line.size(); ++stage) {
    CHECK(with.line[stage].keeps_hidden);
    CHECK(peak(with, stage) >= peak(without, stage));
  }
  CHECK(peak(with, 0) > peak(without, 0));
  CHECK(with.recompute->keep_hidden);
  CHECK(with.hash != without.hash);
  const PlanReport report = make_plan("example", p.recipe, with, p.cost, h200());
  CHECK(nlohmann::json::parse(plan_json(report, with, p.cost))["keeps_hidden"] == true);
  CHECK(simulate(with.line[0], with.layout, p.cost, h200()).step_s <
        simulate(without.line[0], without.layout, p.cost, h200()).step_s);

  p.recipe.memory.limit = std::ldexp(static_cast<double>(with.recompute->needed), -30);
  const Strategy tight = p.strategy();
  for (const Program& program : tight.line) CHECK_FALSE(program.keeps_hidden);
  CHECK(std::ranges::count(tight.recompute->blocks, true) == 0);
}

TEST_CASE("a plan over hosts counts hops of rings and says where their latency comes from",
          "[plan]") {
  Machine machine = h200();
  const std::string built_in = planned(1, 64, 64 * 128).text(machine);
  CHECK(
      built_in.find("between 8 hosts: 360 GB/s out of each, 2.16 us for a hop of a ring; built in, "
                    "not measured") != std::string::npos);
  // 14 groups, each gathered and reduced.
  CHECK(built_in.find("28 by rings over hosts, 1764 hops one after the other: 3.8 ms of latency") !=
        std::string::npos);
  machine.network_source = "as a test has it";
  CHECK(planned(1, 64, 64 * 128).text(machine).find("as a test has it") != std::string::npos);
  CHECK(planned(1, 8, 8 * 128).text(machine).find("between") == std::string::npos);
}

TEST_CASE("the JSON plan holds the numbers of the simulation", "[plan]") {
  const Planned p = planned(3, 4, 512);
  const Strategy s = p.strategy();
  const PlanReport report = make_plan("example", p.recipe, s, p.cost, h200());
  const auto json = nlohmann::json::parse(plan_json(report, s, p.cost));
  CHECK(json["recipe"] == "example");
  CHECK(json["world_size"] == 4);
  CHECK(json["mesh"]["shard"] == 4);
  CHECK(json["batch"]["micro_batches"] == 2);
  CHECK(json["batch"]["fillers"] == 0);
  CHECK(json["memory"]["activations_bytes"] == report.step.ledger.activations);
  CHECK(json["memory"]["total_bytes"] == report.step.ledger.total());
  CHECK(json["blocks"].size() == 14);
  CHECK(json["collectives"].size() == report.step.collectives.size());
  const Bytes host = h200().host_base + report.step.ledger.host_checkpoint;
  CHECK(json["host_memory"]["rank_bytes"] == host);
  CHECK(json["host_memory"]["host_bytes"] == 4 * host);
  CHECK(json["fits"] == true);
  CHECK(json["step_s"].get<double>() == Approx(report.step.step_s));
  // What a rank computes stays, and is no slower beside exchanges where these cost it nothing; of a
  // group of one nothing is exchanged.
  const auto lone = json["step_without_exchanges_s"].get<double>();
  CHECK(lone < report.step.step_s);
  Machine apart = h200();
  apart.collective_compute_share = 0;
  const PlanReport of_apart = make_plan("example", p.recipe, s, p.cost, apart);
  CHECK(lone > 0.99 * of_apart.step.compute_s);
  CHECK(of_apart.step.compute_s < report.step.compute_s);
  const Planned one = planned(3, 1, 512);
  const Strategy alone = one.strategy();
  const PlanReport of_one = make_plan("one", one.recipe, alone, one.cost, h200());
  CHECK_FALSE(nlohmann::json::parse(plan_json(of_one, alone, one.cost))
                  .contains("step_without_exchanges_s"));
  Bytes sum = 0;
  for (const auto& [key, value] : json["memory"].items()) {
    if (key != "allocated_bytes" && key != "total_bytes" && key != "device_bytes")
      sum += value.get<Bytes>();
  }
  CHECK(sum == report.step.ledger.total());
}

}  // namespace
}  // namespace dstrain
