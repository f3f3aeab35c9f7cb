#include "cmd/longest_sequence.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/units.h"
#include "engine/models/model.h"

namespace dstrain {
namespace {

constexpr const char* kOrigin = "--longest";
constexpr std::int64_t kStep = 128, kMaxTokens = std::int64_t{1} << 20;  // of data.sequence

class LongestSearch {
 public:
  LongestSearch(const MemoryPlanner& planner, Machine machine)
      : planner_(planner), machine_(std::move(machine)) {}

  /// The longest that fits `device`, at least `from` tokens if that is known to fit.
  [[nodiscard]] LongestSequence search(const std::vector<std::string>& settings, Bytes device,
                                       std::int64_t from) {
    machine_.device_memory = device;
    LongestSequence best{.device = device};
    const auto fits = [&](std::int64_t steps) {
      const PlannedMemory planned = plan(settings, steps * kStep);
      if (!planned.fits()) return false;
      best.tokens = steps * kStep;
      best.planned = planned;
      return true;
    };
    std::int64_t low = std::max<std::int64_t>(from / kStep, 1);
    if (!fits(low)) return best;
    std::int64_t high = 2 * low;
    while (high * kStep <= kMaxTokens && fits(high)) high *= 2;
    low = best.tokens / kStep;
    high = std::min(high, kMaxTokens / kStep + 1);
    // Half a per mille is closer than a plan is to what is measured.
    while (high - low > std::max<std::int64_t>(low / 2000, 1)) {
      const std::int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return best;
  }

  /// A sample on each data rank, in one micro-batch.
  [[nodiscard]] PlannedMemory plan(std::vector<std::string> settings, std::int64_t tokens) const {
    settings.insert(settings.end(),
                    {fmt::format("data.sequence={}", tokens), "batch.micro=1", "memory.limit=0"});
    if (planner_.recipe().parallel.pipeline == 1)
      settings.push_back(fmt::format("batch.global={}", std::max(planner_.data_ranks(), 1)));
    return planner_.plan(settings, machine_, kOrigin);
  }

 private:
  const MemoryPlanner& planner_;
  Machine machine_;
};

struct Method {
  const char* title;
  const char* setting;  ///< put on those of the methods before; empty: none
};
constexpr Method kMethods[] = {
    {"as the recipe says", ""},
    {"all blocks computed again", "memory.recompute=blocks"},
    {"and MLPs in tiles of 4,096 rows", "memory.tiles=4096"},
    {"and inputs of blocks on the host", "memory.offload.activations=pinned"},
    {"and weights on the host", "memory.offload.parameters=pinned"},
};

double gib(Bytes bytes) { return std::ldexp(static_cast<double>(bytes), -30); }

}  // namespace

LongestTable longest_sequences(const std::string& recipe, const std::vector<std::string>& overrides,
                               int ranks, const Machine& machine,
                               const std::vector<Bytes>& memories) {
  const MemoryPlanner planner(recipe, overrides, ranks);
  if (!is_language_model(planner.recipe().model))
    throw Error(ErrorKind::usage,
                fmt::format("--longest: {} is no model of text", planner.recipe().model.name),
                "a recipe of a language model");
  LongestTable table{.model = planner.recipe().model.name, .machine = machine.name, .rows = {}};
  LongestSearch search(planner, machine);
  std::optional<MemoryConfig> before;
  std::vector<std::string> settings;
  for (const Method& method : kMethods) {
    LongestRow row{.method = method.title, .settings = settings};
    if (*method.setting != 0) row.settings.emplace_back(method.setting);
    try {
      // A way that the recipe has already is no row of its own.
      const MemoryConfig memory = planner.recipe_with(row.settings, kOrigin).memory;
      if (std::exchange(before, memory) == memory) continue;
      (void)search.plan(row.settings, kStep);
    } catch (const Error& error) {
      if (row.settings.empty()) throw;
      row.refused = error.what();  // what comes next goes without it
      table.rows.push_back(std::move(row));
      continue;
    }
    settings = row.settings;
    std::int64_t fits = 0;  // also a larger device
    for (const Bytes device : memories) {
      row.of.push_back(search.search(row.settings, device, fits));
      fits = row.of.back().tokens;
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string longest_text(const LongestTable& table) {
  std::string text = fmt::format(
      "longest data.sequence of {} on a device of {}, one sample a rank and micro-batch\n"
      "  {:<34}{:>10}{:>12}{:>12}{:>12}{:>12}\n",
      table.model, table.machine, "", "device GB", "tokens", "needed GiB", "host GiB", "step");
  for (const LongestRow& row : table.rows) {
    std::string name = row.method;
    if (!row.refused.empty()) {
      text += fmt::format("  {:<34}  {}\n", name, row.refused);
      continue;
    }
    for (const LongestSequence& one : row.of) {
      text += fmt::format("  {:<34}{:>10.4g}", std::exchange(name, ""),
                          static_cast<double>(one.device) / 1e9);
      if (one.tokens == 0) {
        text += fmt::format("{:>12}\n", "none");
        continue;
      }
      text += fmt::format("{:>12}{:>12.2f}{:>12.2f}{:>10.3g} s\n", one.tokens,
                          gib(one.planned.memory), gib(one.planned.host), one.planned.step_s);
    }
  }
  std::vector<std::string> all;
  for (const LongestRow& row : table.rows)
    if (row.refused.empty()) all = row.settings;
  if (!all.empty())
    text += fmt::format("settings of the last length: --set {}\n", fmt::join(all, " --set "));
  return text;
}

std::string longest_json(const LongestTable& table) {
  nlohmann::json rows = nlohmann::json::array();
  for (const LongestRow& row : table.rows) {
    nlohmann::json own = {{"method", row.method}, {"settings", row.settings}};
    if (!row.refused.empty()) own["refused"] = row.refused;
    own["devices"] = nlohmann::json::array();
    for (const LongestSequence& one : row.of) {
      own["devices"].push_back({{"device_bytes", one.device},
                                {"tokens", one.tokens},
                                {"bytes", one.planned.memory},
                                {"host_bytes", one.planned.host},
                                {"step_s", one.planned.step_s}});
    }
    rows.push_back(std::move(own));
  }
  const nlohmann::json all = {{"model", table.model}, {"machine", table.machine}, {"rows", rows}};
  return json_text(all) + "\n";
}

}  // namespace dstrain
