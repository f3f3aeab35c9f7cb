#include "engine/bench/parallel_collectives.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/median.h"
#include "engine/trace/figures.h"

namespace dstrain::bench {
namespace {

/// Operation and purpose.
using Kind = std::pair<std::string, std::string>;

/// What a plan calls the purpose of a communicator, by its name: "shard-gather", "tensor-compute",
/// in a trace "tensor-compute-0 [0, 1]". `gathered`: what the plan says of the gather lane.
std::string purpose_of(std::string_view name, const std::string& gathered) {
  const std::size_t dash = name.find('-');
  const std::string_view axis = name.substr(0, dash);
  std::string_view lane = dash == std::string_view::npos ? "" : name.substr(dash + 1);
  lane = lane.substr(0, lane.find('-'));
  if (axis == "pipeline") return "activations between stages";
  if (lane == "gather") return gathered;
  if (lane == "reduce") return "gradients";
  if (axis == "world") return "norm and metrics";
  return axis.find("shard") != std::string_view::npos ? "momentum of matrices"
                                                      : "activations inside blocks";
}

CollectiveFigures& find(std::vector<CollectiveFigures>& list, const Kind& kind) {
  const auto found = std::ranges::find_if(list, [&](const CollectiveFigures& one) {
    return one.operation == kind.first && one.purpose == kind.second;
  });
  if (found != list.end()) return *found;
  return list.emplace_back(CollectiveFigures{
      .operation = kind.first, .purpose = kind.second, .planned_calls = 0, .planned_bytes = 0});
}

/// Parameters, or parts of summed gradients; a plan has one of them.
std::string gathered_of(const std::vector<CollectiveFigures>& planned) {
  const bool sums = std::ranges::any_of(planned, [](const CollectiveFigures& one) {
    return one.operation == "all_gather" && one.purpose == "gradients";
  });
  return sums ? "gradients" : "parameters";
}

}  // namespace

std::vector<CollectiveFigures> planned_collectives(const nlohmann::json& plan) {
  std::vector<CollectiveFigures> list;
  if (!plan.is_object() || !plan.contains("collectives") || !plan["collectives"].is_array())
    return list;
  for (const nlohmann::json& one : plan["collectives"]) {
    std::string operation = report::text(one, "name");
    std::ranges::replace(operation, '-', '_');
    list.push_back({.operation = operation,
                    .purpose = report::text(one, "purpose"),
                    .planned_calls = report::number(one, "calls"),
                    .planned_bytes = report::number(one, "payload_bytes")});
  }
  return list;
}

void add_counted(std::vector<CollectiveFigures>& list, const report::RunData& run, int rank) {
  if (report::number(run.plan, "world_size") == 1) return;  // counted, but nothing is sent
  const auto timings = std::ranges::find(run.ranks, rank, &report::RankTimings::rank);
  if (timings == run.ranks.end()) return;
  const std::string gathered = gathered_of(list);
  std::map<Kind, std::pair<std::vector<double>, std::vector<double>>> counts;
  // A line has what came since the line before; the first one has the start, too.
  for (std::size_t i = 1; i < timings->rows.size(); ++i) {
    const auto steps = static_cast<double>(timings->rows[i].step - timings->rows[i - 1].step);
    std::map<Kind, std::pair<double, double>> of_line;
    for (const auto& [name, call] : timings->rows[i].calls) {
      const std::size_t space = name.find(' ');
      if (space == std::string::npos) continue;
      auto& [calls, bytes] =
          of_line[{name.substr(0, space), purpose_of(name.substr(space + 1), gathered)}];
      calls += call.first / steps;
      bytes += call.second / steps;
    }
    for (const auto& [kind, call] : of_line) {
      counts[kind].first.push_back(call.first);
      counts[kind].second.push_back(call.second);
    }
  }
  for (const auto& [kind, count] : counts) {
    if (kind.first == "barrier") continue;  // of checkpoints, not of steps
    CollectiveFigures& figures = find(list, kind);
    figures.calls = median(count.first);
    figures.bytes = median(count.second);
  }
}

void add_rates(std::vector<CollectiveFigures>& list, const trace::Collectives& traced) {
  struct Sum {
    double bytes = 0;
    double seconds = 0;
  };
  const std::string gathered = gathered_of(list);
  std::map<Kind, Sum> sums;
  for (const trace::CollectiveRow& row : traced.rows) {
    // Alone, a rank's time is its wait, too.
    if (row.partial > 0 || row.median <= 0 || row.bytes <= 0) continue;
    const auto count = static_cast<double>(row.count);
    Sum& sum = sums[{row.operation, purpose_of(row.group, gathered)}];
    sum.bytes +=
        count * static_cast<double>(row.bytes) * trace::bus_factor(row.operation, row.group_size);
    sum.seconds += count * static_cast<double>(row.median) * 1e-9;
  }
  for (const auto& [kind, sum] : sums) find(list, kind).bus_rate = sum.bytes / sum.seconds;
}

}  // namespace dstrain::bench
