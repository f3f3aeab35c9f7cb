#include "engine/program/auto/auto_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/json.h"
#include "engine/base/units.h"
#include "engine/program/cpu_threads.h"
#include "engine/recipe/axes.h"
#include "engine/recipe/choices.h"

namespace dstrain {
namespace {

double gib(Bytes bytes) { return std::ldexp(static_cast<double>(bytes), -30); }

std::string ms(double seconds) { return fmt::format("{:.1f}", seconds * 1e3); }

/// Samples or tokens a second on one rank.
double rate(const AutoRow& row, const AutoPlan& plan, const AutoTitle& title) {
  return row.batch.global * static_cast<double>(std::max(title.tokens, 1)) / row.step_s /
         plan.ranks;
}

/// Share of the datasheet's rate; 0: not known.
double flops_utilization(const AutoRow& row, const AutoPlan& plan) {
  const double peak = datasheet_flops(plan.machine.name);
  return peak > 0 ? row.flops / row.step_s / peak : 0;
}

std::string sharing(const PlanChoice& choice) {
  if (choice.zero_stage == 0) return "0";
  return choice.shard == 0 ? fmt::format("{}", choice.zero_stage)
                           : fmt::format("{} of {}", choice.zero_stage, choice.shard);
}

std::string schedule(const PlanChoice& choice) {
  if (choice.degrees.pipeline == 1) return "-";
  return fmt::format("{} x{}", spelling(choice.schedule), choice.chunks);
}

std::string percent(double part, double whole) {
  return fmt::format("{:.1f} %", 100 * part / whole);
}

std::array<std::string, 12> cells(const AutoRow& row, const AutoPlan& plan,
                                  const AutoTitle& title) {
  const double share = flops_utilization(row, plan);
  return {describe(row.choice, plan.ranks),
          sharing(row.choice),
          schedule(row.choice),
          fmt::format("{} x {}", row.batch.micro, row.batch.micro_batches),
          row.recomputed == 0 ? "none" : fmt::format("{} of {}", row.recomputed, row.blocks - 1),
          ms(row.step_s),
          format_count(rate(row, plan, title)),
          share > 0 ? fmt::format("{:.1f} %", 100 * share) : "-",
          fmt::format("{:.1f}", gib(row.memory)),
          percent(row.bubble_s, row.step_s),
          ms(row.exchange_s + row.exposed_s),
          ""};
}

/// Columns as wide as their longest cell; the first five are words, the others numbers.
std::string table(const std::vector<std::array<std::string, 12>>& rows) {
  constexpr std::size_t kWords = 5;
  std::array<std::size_t, 12> widths{};
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (std::size_t c = 0; c < row.size(); ++c) {
      const bool word = c < kWords || c + 1 == row.size();
      line += word ? fmt::format(" {:<{}}", row[c], widths[c])
                   : fmt::format(" {:>{}}", row[c], widths[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

/// How the terms of a step differ from those of the first row, the largest first.
std::string difference(const AutoRow& row, const AutoRow& first) {
  std::vector<std::pair<double, const char*>> terms = {
      {row.compute_s - first.compute_s, "computing"},
      {row.exchange_s - first.exchange_s, "exchanges in layers"},
      {row.exposed_s - first.exposed_s, "waits for gathers and reductions"},
      {row.bubble_s - first.bubble_s, "bubble"},
      {row.rest_s - first.rest_s, "update and data"}};
  std::ranges::stable_sort(terms, std::ranges::greater(),
                           [](const auto& term) { return std::abs(term.first); });
  constexpr double kSaid = 0.002;  // of the step
  std::string text;
  for (const auto& [seconds, name] : terms) {
    if (std::abs(seconds) < kSaid * first.step_s) continue;
    text += fmt::format("{}{:+.1f} ms {}", text.empty() ? "" : ", ", seconds * 1e3, name);
  }
  return text.empty() ? "the same terms" : text;
}

std::string family_line(const AutoFamily& family, const AutoPlan& plan) {
  if (!family.best) return fmt::format("  {:<14} cannot run: {}\n", family.name, family.reason);
  const AutoRow& first = plan.rows.front();
  const AutoRow& best = *family.best;
  const std::string layout = fmt::format(
      "{}{}, micro-batch {}", describe(best.choice, plan.ranks),
      best.choice.zero_stage > 0 ? ", ZeRO " + sharing(best.choice) : "", best.batch.micro);
  return fmt::format("  {:<14} {:+.1f} % ({}): {}\n", family.name,
                     100 * (best.step_s / first.step_s - 1), layout, difference(best, first));
}

nlohmann::ordered_json row_json(const AutoRow& row, const AutoPlan& plan, const AutoTitle& title) {
  nlohmann::ordered_json json;
  for (const AxisKey& key : kAxisKeys) json[axis_name(key.axis)] = row.choice.degrees[key.axis];
  json.update(nlohmann::ordered_json{{"data_ranks", row.batch.data_ranks},
                                     {"zero_stage", row.choice.zero_stage},
                                     {"shard", row.choice.shard},
                                     {"schedule", spelling(row.choice.schedule)},
                                     {"chunks", row.choice.chunks},
                                     {"micro", row.batch.micro},
                                     {"micro_batches", row.batch.micro_batches},
                                     {"concurrent", row.choice.concurrent},
                                     {"recomputed_blocks", row.recomputed},
                                     {"step_s", row.step_s},
                                     {"compute_s", row.compute_s},
                                     {"exchange_s", row.exchange_s},
                                     {"exposed_s", row.exposed_s},
                                     {"bubble_s", row.bubble_s},
                                     {"rest_s", row.rest_s},
                                     {"rank_bytes", row.memory},
                                     {"limit_bytes", row.limit},
                                     {"fits", row.fits()},
                                     {"mfu", flops_utilization(row, plan)},
                                     {"samples_per_s", row.batch.global / row.step_s}});
  if (title.tokens > 0) json["tokens_per_s_and_rank"] = rate(row, plan, title);
  json["settings"] = settings(row.choice);
  return json;
}

}  // namespace

std::string auto_text(const AutoPlan& plan, const AutoTitle& title) {
  std::string text = fmt::format(
      "recipe     {}\nmodel      {}\nmachine    {}, {} ranks{}\nbatch      {} samples "
      "a step\nsearch     {} layouts, {} simulated, {} built and checked\n\n",
      title.recipe, title.model, plan.machine.name, plan.ranks,
      plan.machine.shares_memory ? "\nhosts      " + hosts_text(plan.machine, plan.ranks)
                                 : fmt::format(", {} in a node", plan.machine.ranks_per_node),
      plan.rows.front().batch.global, plan.choices, plan.simulated, plan.built);
  std::vector<std::array<std::string, 12>> rows = {{"layout", "ZeRO", "schedule", "micro",
                                                    "recompute", "step ms",
                                                    title.tokens > 0 ? "tok/s/rank"
                                                    : title.clips    ? "clips/s/rank"
                                                                     : "img/s/rank",
                                                    "MFU", "GiB", "bubble", "exposed ms", ""}};
  for (const AutoRow& row : plan.rows) {
    rows.push_back(cells(row, plan, title));
    if (is_default_layout(row.choice, plan.ranks)) rows.back().back() = "default layout";
  }
  for (const AutoRow& row : plan.defaults) {
    rows.push_back(cells(row, plan, title));
    rows.back().back() = "default layout";
  }
  text += table(rows);
  if (plan.families.empty()) return text;
  text += "\nwhy others lost: the best of each kind, against the first row\n";
  for (const AutoFamily& family : plan.families) text += family_line(family, plan);
  return text;
}

std::string auto_json(const AutoPlan& plan, const AutoTitle& title) {
  using nlohmann::ordered_json;
  const auto list = [&](const std::vector<AutoRow>& rows) {
    ordered_json all = ordered_json::array();
    for (const AutoRow& row : rows) all.push_back(row_json(row, plan, title));
    return all;
  };
  ordered_json families = ordered_json::array();
  for (const AutoFamily& family : plan.families) {
    ordered_json one = {{"name", family.name}};
    if (family.best) {
      one["best"] = row_json(*family.best, plan, title);
      one["difference"] = difference(*family.best, plan.rows.front());
    } else {
      one["reason"] = family.reason;
    }
    families.push_back(std::move(one));
  }
  const ordered_json json = {{"recipe", title.recipe},
                             {"model", title.model},
                             {"machine", plan.machine.name},
                             {"ranks", plan.ranks},
                             {"ranks_per_node", plan.machine.ranks_per_node},
                             {"choices", plan.choices},
                             {"simulated", plan.simulated},
                             {"built", plan.built},
                             {"rows", list(plan.rows)},
                             {"defaults", list(plan.defaults)},
                             {"families", families}};
  return json_text(json, 2) + "\n";
}

std::string recipe_fragment(const AutoPlan& plan, const AutoRow& row, const AutoTitle& title) {
  const PlanChoice& c = row.choice;
  std::string axes, stages;
  for (const AxisKey& key : kAxisKeys)
    axes += fmt::format("  {}: {}\n", axis_name(key.axis), c.degrees[key.axis]);
  if (c.degrees.pipeline > 1)
    stages =
        fmt::format("\n  stages: {{ schedule: {}, chunks: {} }}", spelling(c.schedule), c.chunks);
  return fmt::format(
      "# {} on {} ranks of {}: {} ms a step, {:.1f} GiB on the fullest rank (dstrain plan "
      "--auto).\nparallel:\n{}  zero: {{ stage: {}, shard: {} }}{}\nbatch: {{ global: {}, micro: "
      "{}, concurrent: {} }}\nmemory: {{ "
      "recompute: auto }}\n",
      title.recipe, plan.ranks, plan.machine.name, ms(row.step_s), gib(row.memory), axes,
      c.zero_stage, c.shard, stages, row.batch.global, c.micro, c.concurrent);
}

}  // namespace dstrain
