#include "engine/program/flops_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "engine/base/index.h"
#include "engine/base/json.h"

namespace dstrain {
namespace {

bool same_cost(const FlopsRow& a, const FlopsRow& b) {
  return a.parameters == b.parameters && a.trained == b.trained && a.forward == b.forward &&
         a.saved == b.saved;
}

/// Sums over all blocks.
FlopsRow total_of(const std::vector<FlopsRow>& rows) {
  FlopsRow total{.name = "all", .blocks = 0};
  for (const FlopsRow& row : rows) {
    total.blocks += row.blocks;
    total.parameters += row.blocks * row.parameters;
    total.trained += row.blocks * row.trained;
    total.macs += row.blocks * row.macs;
    total.forward += row.blocks * row.forward;
    total.backward += row.blocks * row.backward;
    total.share += row.share;
    total.saved += row.blocks * row.saved;
  }
  return total;
}

}  // namespace

std::vector<FlopsRow> flops_rows(const ModelCost& cost) {
  std::vector<FlopsRow> rows;
  std::set<int> counted;
  for (const BlockCost& block : cost.blocks) {
    FlopsRow row{.name = block.name,
                 .macs = block.forward_flops / 2,
                 .forward = block.forward_flops,
                 .backward = 2 * block.forward_flops,
                 .saved = block.saved_bytes + block.boundary_bytes()};
    for (const int group : block.groups) {
      if (!counted.insert(group).second) continue;
      const GroupCost& parameters = cost.groups.at(to_index(group));
      const auto& sizes = parameters.tensor_sizes;
      const std::int64_t elements = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
      row.parameters += elements;
      if (parameters.trainable) row.trained += elements;
    }
    if (!rows.empty() && same_cost(rows.back(), row)) {
      const std::string& name = rows.back().name;
      rows.back().name = name.substr(0, name.find(" .. ")) + " .. " + row.name;
      ++rows.back().blocks;
    } else {
      rows.push_back(row);
    }
  }
  double all = 0;
  for (const FlopsRow& row : rows) all += row.blocks * static_cast<double>(row.forward);
  for (FlopsRow& row : rows)
    row.share = all > 0 ? row.blocks * static_cast<double>(row.forward) / all : 0;
  return rows;
}

std::string flops_text(const std::vector<FlopsRow>& rows, int samples) {
  std::size_t width = 5;
  for (const FlopsRow& row : rows) width = std::max(width, row.name.size());
  std::string text = fmt::format(
      "One micro-batch of {} samples. Parameters, MACs, FLOPs and bytes are of one block.\n"
      "{:<{}}  blocks   parameters      trained     GMACs  forward GFLOP  backward GFLOP  share  "
      "saved MiB\n",
      samples, "block", width);
  const auto line = [&](const FlopsRow& row) {
    return fmt::format(
        "{:<{}}  {:>6}  {:>11}  {:>11}  {:>8.2f}  {:>13.2f}  {:>14.2f}  {:>4.1f}%  {:>9.2f}\n",
        row.name, width, row.blocks, row.parameters, row.trained,
        static_cast<double>(row.macs) * 1e-9, static_cast<double>(row.forward) * 1e-9,
        static_cast<double>(row.backward) * 1e-9, row.share * 100,
        static_cast<double>(row.saved) / (1 << 20));
  };
  for (const FlopsRow& row : rows) text += line(row);
  return text + line(total_of(rows));
}

std::string flops_json(const std::vector<FlopsRow>& rows, int samples) {
  const auto object = [](const FlopsRow& row) {
    return nlohmann::ordered_json{{"name", row.name},
                                  {"blocks", row.blocks},
                                  {"parameters", row.parameters},
                                  {"trained", row.trained},
                                  {"macs", row.macs},
                                  {"forward_flops", row.forward},
                                  {"backward_flops", row.backward},
                                  {"share", row.share},
                                  {"saved_bytes", row.saved}};
  };
  nlohmann::ordered_json json = {{"samples", samples}, {"all", object(total_of(rows))}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const FlopsRow& row : rows) json["rows"].push_back(object(row));
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain
