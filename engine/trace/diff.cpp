#include "engine/trace/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/trace/tables.h"

namespace dstrain::trace {
namespace {

/// Steps of all ranks: what sums are divided by.
std::int64_t rank_steps(const Analysis& analysis) {
  std::int64_t steps = 0;
  for (const RankFigures& rank : analysis.ranks)
    steps += std::max<std::int64_t>(1, static_cast<std::int64_t>(rank.steps.size()));
  return steps;
}

struct Total {
  const char* name;
  std::int64_t (*value)(const Breakdown&);
};
constexpr Total kTotals[] = {
    {"time", [](const Breakdown& b) { return b.window; }},
    {"busy", [](const Breakdown& b) { return b.busy; }},
    {"idle", [](const Breakdown& b) { return b.idle(); }},
    {"compute", [](const Breakdown& b) { return b.compute; }},
    {"communication", [](const Breakdown& b) { return b.communication; }},
    {"exposed communication", [](const Breakdown& b) { return b.exposed_communication(); }},
    {"memory", [](const Breakdown& b) { return b.memory; }},
};

double mean_of(const Analysis& analysis, const Total& total, double divisor) {
  std::int64_t sum = 0;
  for (const RankFigures& rank : analysis.ranks) sum += total.value(rank.all);
  return static_cast<double>(sum) / divisor;
}

std::string signed_us(double ns) { return fmt::format("{:+.3f}", ns / 1e3); }
std::string change(const DiffRow& row) {
  if (row.base <= 0) return row.test > 0 ? "new" : "-";
  if (row.test_count == 0 && row.base_count > 0) return "gone";
  return fmt::format("{:+.1f}", 100 * row.difference() / row.base);
}

nlohmann::ordered_json json_of(const DiffRow& row) {
  nlohmann::ordered_json json;
  if (!row.type.empty()) json["type"] = row.type;
  json["name"] = row.name;
  json["base_ns"] = row.base;
  json["test_ns"] = row.test;
  json["difference_ns"] = row.difference();
  if (!row.type.empty()) {
    json["base_count"] = row.base_count;
    json["test_count"] = row.test_count;
  }
  return json;
}

}  // namespace

double Diff::growth() const {
  const DiffRow& time = totals.front();
  return time.base > 0 ? 100 * time.difference() / time.base : 0.0;
}

Diff diff(const Analysis& base, const Analysis& test) {
  Diff result;
  result.by = test.by;
  result.base_ranks = base.ranks.size();
  result.test_ranks = test.ranks.size();
  const std::int64_t base_steps = rank_steps(base), test_steps = rank_steps(test);
  result.base_steps = base_steps / static_cast<std::int64_t>(base.ranks.size());
  result.test_steps = test_steps / static_cast<std::int64_t>(test.ranks.size());
  const auto base_divisor = static_cast<double>(base_steps);
  const auto test_divisor = static_cast<double>(test_steps);
  for (const Total& total : kTotals)
    result.totals.push_back({"", total.name, mean_of(base, total, base_divisor),
                             mean_of(test, total, test_divisor), 0, 0});
  std::map<std::pair<std::string, std::string>, DiffRow> rows;
  for (const KernelRow& row : base.kernels) {
    DiffRow& found = rows[{row.type, row.name}];
    found.base = static_cast<double>(row.sum) / base_divisor;
    found.base_count = static_cast<double>(row.count) / base_divisor;
  }
  for (const KernelRow& row : test.kernels) {
    DiffRow& found = rows[{row.type, row.name}];
    found.test = static_cast<double>(row.sum) / test_divisor;
    found.test_count = static_cast<double>(row.count) / test_divisor;
  }
  for (auto& [key, row] : rows) {
    row.type = key.first;
    row.name = key.second;
    result.rows.push_back(std::move(row));
  }
  std::stable_sort(result.rows.begin(), result.rows.end(), [](const DiffRow& a, const DiffRow& b) {
    return std::abs(a.difference()) > std::abs(b.difference());
  });
  for (const auto& [notes, side] : {std::pair{&base.notes, "base"}, std::pair{&test.notes, "test"}})
    for (const std::string& note : *notes)
      result.notes.push_back(fmt::format("{}: {}", side, note));
  if (base.ranks.size() != test.ranks.size())
    result.notes.push_back(
        fmt::format("base has {} ranks, test {}", base.ranks.size(), test.ranks.size()));
  return result;
}

nlohmann::ordered_json to_json(const Diff& diff) {
  nlohmann::ordered_json totals = nlohmann::ordered_json::array(), rows = totals;
  for (const DiffRow& row : diff.totals) totals.push_back(json_of(row));
  for (const DiffRow& row : diff.rows) rows.push_back(json_of(row));
  return {{"version", 1},
          {"base", {{"ranks", diff.base_ranks}, {"steps", diff.base_steps}}},
          {"test", {{"ranks", diff.test_ranks}, {"steps", diff.test_steps}}},
          {"growth_percent", diff.growth()},
          {"totals", std::move(totals)},
          {"rows", std::move(rows)},
          {"notes", diff.notes}};
}

std::string to_text(const Diff& diff, std::size_t top) {
  Table totals{"totals",
               fmt::format("Time of a step and rank ({} and {} steps, {} and {} ranks)",
                           diff.base_steps, diff.test_steps, diff.base_ranks, diff.test_ranks),
               {"figure", "base us", "test us", "difference us", "%"},
               {},
               1};
  for (const DiffRow& row : diff.totals)
    totals.rows.push_back(
        {row.name, fmt::format("{:.3f}", row.base / 1e3), fmt::format("{:.3f}", row.test / 1e3),
         signed_us(row.difference()),
         row.base > 0 ? fmt::format("{:+.1f}", 100 * row.difference() / row.base) : "-"});
  Table rows{"rows",
             fmt::format("Largest differences by {}", group_by_name(diff.by)),
             {"type", group_by_name(diff.by), "base us", "test us", "difference us", "%",
              "base count", "test count"},
             {},
             2};
  for (std::size_t i = 0; i < std::min(top, diff.rows.size()); ++i) {
    const DiffRow& row = diff.rows[i];
    rows.rows.push_back({row.type, row.name, fmt::format("{:.3f}", row.base / 1e3),
                         fmt::format("{:.3f}", row.test / 1e3), signed_us(row.difference()),
                         change(row), fmt::format("{:.1f}", row.base_count),
                         fmt::format("{:.1f}", row.test_count)});
  }
  std::string text = text_of(totals) + "\n" + text_of(rows);
  for (const std::string& note : diff.notes) text += fmt::format("\nnote: {}\n", note);
  return text;
}

}  // namespace dstrain::trace
