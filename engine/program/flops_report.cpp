#include "engine/program/flops_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
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
    total.time.forward_s += row.blocks * row.time.forward_s;
    total.time.backward_s += row.blocks * row.time.backward_s;
  }
  return total;
}

/// The layers of a block, without its name before theirs.
std::vector<FlopsRow> layer_rows(const BlockCost& block) {
  std::vector<FlopsRow> rows;
  if (block.layers.empty()) return rows;
  const std::string prefix = block.name + ".";
  for (const LayerCost& layer : block.layers) {
    rows.push_back(
        {.name = layer.name.starts_with(prefix) ? layer.name.substr(prefix.size()) : layer.name,
         .parameters = layer.parameters,
         .trained = layer.trained,
         .macs = layer.forward_flops / 2,
         .forward = layer.forward_flops,
         .backward = 2 * layer.forward_flops,
         .saved = layer.saved_bytes});
  }
  rows.push_back({.name = "output", .saved = block.boundary_bytes()});
  return rows;
}

void set_shares(std::vector<FlopsRow>& rows) {
  double all = 0;
  for (const FlopsRow& row : rows) all += row.blocks * static_cast<double>(row.forward);
  if (all <= 0) return;
  for (FlopsRow& row : rows) {
    row.share = row.blocks * static_cast<double>(row.forward) / all;
    for (FlopsRow& layer : row.layers)
      layer.share = row.blocks * static_cast<double>(layer.forward) / all;
  }
}

double per_second(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

std::string measured_text(const FlopsReport& report, std::size_t width) {
  const FlopsRow all = total_of(report.rows);
  const double all_s = all.time.forward_s + all.time.backward_s;
  // A head may compute in backward what counts as forward: only both together have a rate.
  std::string text = fmt::format(
      "\nMeasured on {}: times of one block; FLOPs of forward and backward by both times.\n"
      "{:<{}}  forward ms  backward ms  TFLOP/s  of datasheet  share of time\n",
      report.device, "block", width);
  const auto line = [&](const FlopsRow& row, int blocks) {
    const double time_s = row.time.forward_s + row.time.backward_s;
    const double rate = per_second(row.forward + row.backward, time_s);
    return fmt::format(
        "{:<{}}  {:>10.3f}  {:>11.3f}  {:>7.4g}  {:>12}  {:>12.1f}%\n", row.name, width,
        row.time.forward_s * 1e3, row.time.backward_s * 1e3, rate * 1e-12,
        report.peak_flops > 0 ? fmt::format("{:.1f}%", 100 * rate / report.peak_flops) : "-",
        100 * per_second(blocks * time_s, all_s));
  };
  for (const FlopsRow& row : report.rows) text += line(row, row.blocks);
  return text + line(all, 1);
}

}  // namespace

std::vector<FlopsRow> flops_rows(const ModelCost& cost, const std::vector<BlockTime>& times) {
  std::vector<FlopsRow> rows;
  std::set<int> counted;
  for (std::size_t b = 0; b < cost.blocks.size(); ++b) {
    const BlockCost& block = cost.blocks[b];
    FlopsRow row{.name = block.name,
                 .macs = block.forward_flops / 2,
                 .forward = block.forward_flops,
                 .backward = 2 * block.forward_flops,
                 .saved = block.saved_bytes + block.boundary_bytes(),
                 .time = times.empty() ? BlockTime{} : times.at(b),
                 .layers = layer_rows(block)};
    for (const int group : block.groups) {
      if (!counted.insert(group).second) continue;
      const GroupCost& parameters = cost.groups.at(to_index(group));
      row.parameters += parameters.elements();
      if (parameters.trainable) row.trained += parameters.elements();
    }
    if (!rows.empty() && same_cost(rows.back(), row)) {
      FlopsRow& last = rows.back();
      last.name = last.name.substr(0, last.name.find(" .. ")) + " .. " + row.name;
      ++last.blocks;
      last.time.forward_s += (row.time.forward_s - last.time.forward_s) / last.blocks;
      last.time.backward_s += (row.time.backward_s - last.time.backward_s) / last.blocks;
    } else {
      rows.push_back(row);
    }
  }
  set_shares(rows);
  return rows;
}

std::string flops_text(const FlopsReport& report) {
  std::size_t width = 5;
  for (const FlopsRow& row : report.rows) {
    width = std::max(width, row.name.size());
    if (!report.layers) continue;
    for (const FlopsRow& layer : row.layers) width = std::max(width, layer.name.size() + 2);
  }
  std::string text = fmt::format(
      "One micro-batch of {} samples. Parameters, MACs, FLOPs and bytes are of one block.\n"
      "{:<{}}  blocks   parameters      trained     GMACs  forward GFLOP  backward GFLOP  share  "
      "saved MiB\n",
      report.samples, "block", width);
  const auto line = [&](const FlopsRow& row, std::string_view indent, const std::string& blocks) {
    return fmt::format(
        "{:<{}}  {:>6}  {:>11}  {:>11}  {:>8.2f}  {:>13.2f}  {:>14.2f}  {:>4.1f}%  {:>9.2f}\n",
        fmt::format("{}{}", indent, row.name), width, blocks, row.parameters, row.trained,
        static_cast<double>(row.macs) * 1e-9, static_cast<double>(row.forward) * 1e-9,
        static_cast<double>(row.backward) * 1e-9, row.share * 100,
        static_cast<double>(row.saved) / (1 << 20));
  };
  for (const FlopsRow& row : report.rows) {
    text += line(row, "", fmt::to_string(row.blocks));
    if (!report.layers) continue;
    for (const FlopsRow& layer : row.layers) text += line(layer, "  ", "");
  }
  const FlopsRow all = total_of(report.rows);
  text += line(all, "", fmt::to_string(all.blocks));
  return report.device.empty() ? text : text + measured_text(report, width);
}

std::string flops_json(const FlopsReport& report) {
  const bool measured = !report.device.empty();
  const auto object = [&](const FlopsRow& row) {
    nlohmann::ordered_json json = {{"name", row.name},
                                   {"blocks", row.blocks},
                                   {"parameters", row.parameters},
                                   {"trained", row.trained},
                                   {"macs", row.macs},
                                   {"forward_flops", row.forward},
                                   {"backward_flops", row.backward},
                                   {"share", row.share},
                                   {"saved_bytes", row.saved}};
    if (measured) {
      json["forward_s"] = row.time.forward_s;
      json["backward_s"] = row.time.backward_s;
    }
    return json;
  };
  nlohmann::ordered_json json = {{"samples", report.samples}};
  if (measured) {
    json["device"] = report.device;
    json["peak_flops"] = report.peak_flops;
  }
  json["all"] = object(total_of(report.rows));
  json["rows"] = nlohmann::ordered_json::array();
  for (const FlopsRow& row : report.rows) {
    json["rows"].push_back(object(row));
    if (!report.layers) continue;
    nlohmann::ordered_json& layers = json["rows"].back()["layers"];
    layers = nlohmann::ordered_json::array();
    for (const FlopsRow& layer : row.layers) {
      layers.push_back(object(layer));
      for (const char* key : {"blocks", "forward_s", "backward_s"}) layers.back().erase(key);
    }
  }
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain
