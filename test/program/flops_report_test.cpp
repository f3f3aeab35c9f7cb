#include "engine/program/flops_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "test/program/models.h"
#include "test/support/catch.h"

using namespace dstrain;

TEST_CASE("the rows of FLOPs add up to the model, equal neighbours in one", "[program][flops]") {
  const test::Case c = test::make_case(0, 1, 1, 6, {.micro_batches = 1, .prefetch = 1});
  const std::vector<FlopsRow> rows = flops_rows(c.cost);
  Flops forward = 0;
  std::int64_t parameters = 0, blocks = 0;
  double share = 0;
  for (const FlopsRow& row : rows) {
    CHECK(row.backward == 2 * row.forward);
    CHECK(row.forward == 2 * row.macs);
    forward += row.blocks * row.forward;
    parameters += row.blocks * row.parameters;
    blocks += row.blocks;
    share += row.share;
  }
  Flops wanted_forward = 0;
  for (const BlockCost& block : c.cost.blocks) wanted_forward += block.forward_flops;
  std::int64_t wanted_parameters = 0;
  for (const GroupCost& group : c.cost.groups)
    for (const std::int64_t size : group.tensor_sizes) wanted_parameters += size;
  CHECK(forward == wanted_forward);
  CHECK(parameters == wanted_parameters);
  CHECK(blocks == static_cast<std::int64_t>(c.cost.blocks.size()));
  CHECK(share == Approx(1));
  const auto json = nlohmann::json::parse(flops_json({.rows = rows, .samples = 4}));
  CHECK(json["all"]["forward_flops"] == forward);
  CHECK(json["rows"].size() == rows.size());
}

TEST_CASE("neighbours of equal cost are one row", "[program][flops]") {
  ModelCost cost;
  cost.groups = {{.name = "a", .tensor_sizes = {5}},
                 {.name = "b", .tensor_sizes = {5}},
                 {.name = "c", .tensor_sizes = {6}}};
  cost.blocks = {{.name = "layer.0", .groups = {0}, .forward_flops = 4},
                 {.name = "layer.1", .groups = {1}, .forward_flops = 4},
                 {.name = "head", .groups = {2}, .forward_flops = 2}};
  const std::vector<FlopsRow> rows = flops_rows(cost);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].name == "layer.0 .. layer.1");
  CHECK(rows[0].blocks == 2);
  CHECK(rows[0].share == Approx(0.8));
  CHECK(flops_text({.rows = rows, .samples = 1}).find("layer.0 .. layer.1") != std::string::npos);
}

TEST_CASE("a group that two blocks read counts once", "[program][flops]") {
  ModelCost cost;
  cost.groups = {{.name = "table", .tensor_sizes = {100, 20}},
                 {.name = "head", .tensor_sizes = {7}, .trainable = false}};
  cost.blocks = {{.name = "embedding", .groups = {0}, .forward_flops = 0},
                 {.name = "head", .groups = {0, 1}, .forward_flops = 10}};
  const std::vector<FlopsRow> rows = flops_rows(cost);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].parameters == 120);
  CHECK(rows[0].share == 0);
  CHECK(rows[1].parameters == 7);
  CHECK(rows[1].trained == 0);
  CHECK(rows[1].share == 1);
}

TEST_CASE("layers and times of equal blocks are told once", "[program][flops]") {
  ModelCost cost;
  cost.groups = {{.name = "a", .tensor_sizes = {6}}, {.name = "b", .tensor_sizes = {6}}};
  for (const int group : {0, 1}) {
    BlockCost block{.name = fmt::format("layer.{}", group), .groups = {group}};
    block.boundary = {{.shape = {3}, .width = 2}};
    block.take({{.name = block.name + ".mlp",
                 .parameters = 6,
                 .trained = 4,
                 .forward_flops = 12,
                 .saved_bytes = 5},
                {.name = "GELU", .saved_bytes = 7}});
    cost.blocks.push_back(block);
  }
  CHECK(cost.blocks[0].forward_flops == 12);
  CHECK(cost.blocks[0].saved_bytes == 12);
  FlopsReport report{.rows = flops_rows(cost, {{1e-12, 2e-12}, {3e-12, 4e-12}}), .samples = 1};
  CHECK(flops_text(report).find("mlp") == std::string::npos);
  CHECK(flops_text(report).find("Measured") == std::string::npos);
  report.layers = true;
  report.device = "some GPU";
  report.peak_flops = 24e12;
  REQUIRE(report.rows.size() == 1);
  const FlopsRow& row = report.rows[0];
  CHECK(row.time.forward_s == Approx(2e-12));
  CHECK(row.time.backward_s == Approx(3e-12));
  CHECK(row.saved == 18);
  REQUIRE(row.layers.size() == 3);
  CHECK(row.layers[0].name == "mlp");
  CHECK(row.layers[0].share == 1);
  CHECK(row.layers[2].name == "output");
  Bytes saved = 0;
  for (const FlopsRow& layer : row.layers) saved += layer.saved;
  CHECK(saved == row.saved);
  const std::string text = flops_text(report);
  CHECK(text.find("  mlp") != std::string::npos);
  CHECK(text.find("30.0%") != std::string::npos);  // 36 FLOPs in 5 ps, of 24 TFLOP/s
  const auto json = nlohmann::json::parse(flops_json(report));
  CHECK(json["rows"][0]["layers"][1]["saved_bytes"] == 7);
  CHECK(json["all"]["forward_s"] == Approx(4e-12));
}
