#include "engine/report/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "engine/base/median.h"
#include "engine/base/run_layout.h"
#include "engine/report/words.h"

namespace dstrain::report {
namespace {

constexpr double kMinGain = 0.01;
constexpr double kLossTolerance = 0.02;  // of the baseline's loss

/// Settings that change neither the work of a step nor its result.
bool is_about_the_run(std::string_view key) {
  return key == "run.output" || key == "run.seed" || key.starts_with("trace.") ||
         key.starts_with("metrics.");
}

/// Keys of the model that change neither its arithmetic nor its size.
bool leaves_the_model(std::string_view key) {
  static constexpr std::array<std::string_view, 8> kKeys = {
      "model.weights", "model.dropout",      "model.drop_path", "model.planned_load",
      "model.upcycle", "model.balance_loss", "model.z_loss",    "model.member_weights"};
  return std::ranges::find(kKeys, key) != kKeys.end();
}

/// Keys of the data by which a sample takes more or less work.
constexpr std::array<std::string_view, 5> kSampleKeys = {
    "data.name", "data.sequence", "data.frames", "data.packing", "data.too_long"};
/// Those by which losses are of other samples or targets.
constexpr std::array<std::string_view, 11> kLossKeys = {
    "data.path",       "data.subset",      "data.loss",           "data.prompt",
    "data.response",   "data.tokenizer",   "data.test_share",     "preference.loss",
    "preference.beta", "preference.gamma", "preference.smoothing"};

bool differ(const RunFigures& a, const RunFigures& b, std::string_view key) {
  return setting(a.data, key) != setting(b.data, key);
}

std::string variant_key(const RunFigures& run) {
  std::string key = fmt::format("{}\n{}\n", run.ranks, run.device);
  for (const auto& [path, value] : run.data.settings) {
    if (!is_about_the_run(path)) key += path + "=" + value + "\n";
  }
  return key;
}

std::vector<SettingDifference> differing_settings(const std::vector<RunFigures>& runs) {
  std::vector<SettingDifference> differences;
  const auto add = [&](const std::string& key, const auto& value_of) {
    SettingDifference difference = {.key = key, .values = {}};
    for (const RunFigures& run : runs) difference.values.push_back(value_of(run));
    if (std::set<std::string>(difference.values.begin(), difference.values.end()).size() > 1)
      differences.push_back(std::move(difference));
  };
  add("ranks", [](const RunFigures& run) { return fmt::to_string(run.ranks); });
  add("device", [](const RunFigures& run) { return run.device; });
  std::set<std::string> done;
  for (const RunFigures& run : runs) {
    for (const auto& [path, value] : run.data.settings) {
      if (path != "run.output" && done.insert(path).second)
        add(path, [key = &path](const RunFigures& of) { return setting(of.data, *key); });
    }
  }
  return differences;
}

std::vector<std::string> comparison_warnings(const std::vector<RunFigures>& runs) {
  std::vector<std::string> warnings;
  const RunFigures& base = runs.front();
  for (const RunFigures& run : runs) {
    if (!run.device.empty() && !base.device.empty() && run.device != base.device)
      warnings.push_back(
          fmt::format("{} ran on {}, the baseline on {}", run.label, run.device, base.device));
    const std::string driver = text(run.data.environment, "gpu_driver");
    if (driver != text(base.data.environment, "gpu_driver"))
      warnings.push_back(fmt::format("{} ran under driver '{}', the baseline under '{}'", run.label,
                                     driver, text(base.data.environment, "gpu_driver")));
    for (const GpuSummary& gpu : run.gpus) {
      if (gpu.throttled > 0.05)
        warnings.push_back(fmt::format("GPU {} of {} lowered its clock in {} of the samples",
                                       gpu.index, run.label, share_words(gpu.throttled)));
    }
  }
  return warnings;
}

double global_batch(const RunFigures& run) {
  return run.data.plan.is_object() && run.data.plan.contains("batch")
             ? number(run.data.plan["batch"], "global")
             : kUnknown;
}

LossParity loss_parity(const RunFigures& base, const RunFigures& test) {
  LossParity parity;
  if (std::ranges::any_of(kLossKeys, [&](std::string_view key) { return differ(base, test, key); }))
    return parity;
  const double of_base = global_batch(base);
  const double of_test = global_batch(test);
  if (!(of_base > 0) || !(of_test > 0) || base.data.steps.empty() || test.data.steps.empty())
    return parity;
  const double common = std::min(of_base * static_cast<double>(base.last_step),
                                 of_test * static_cast<double>(test.last_step));
  const auto losses = [&](const RunFigures& run, double batch) {
    std::vector<double> values;
    for (const StepRow& row : run.data.steps) {
      const double samples = batch * static_cast<double>(row.step);
      if (samples > 0.9 * common && samples <= common * (1 + 1e-9)) values.push_back(row.loss);
    }
    return values;
  };
  const std::vector<double> a = losses(base, of_base);
  const std::vector<double> b = losses(test, of_test);
  if (a.empty() || b.empty()) return parity;
  const auto mean_and_error = [](const std::vector<double>& values) {
    const auto count = static_cast<double>(values.size());
    double mean = 0;
    for (const double v : values) mean += v / count;
    double squares = 0;
    for (const double v : values) squares += (v - mean) * (v - mean);
    return std::pair(mean, count > 1 ? squares / (count - 1) / count : 0.0);
  };
  const auto [mean_a, error_a] = mean_and_error(a);
  const auto [mean_b, error_b] = mean_and_error(b);
  parity = {.known = true, .holds = true, .base = mean_a, .variant = mean_b};
  const double worse = mean_b - mean_a;
  parity.holds =
      std::isfinite(mean_b) && std::isfinite(mean_a) &&
      !(worse > kLossTolerance * std::abs(mean_a) && worse > 2 * std::sqrt(error_a + error_b));
  return parity;
}

std::string verdict_of(const Variant& variant, std::size_t pairs) {
  if (!std::isfinite(variant.speed.value)) return "no rate to compare";
  if (variant.parity.known && !variant.parity.holds)
    return fmt::format("loss parity failed: {} against {} at equal samples",
                       number_words(variant.parity.variant), number_words(variant.parity.base));
  if (pairs == 1) return "one run each: drift of the machine not covered";
  if (!variant.speed.interval) return fmt::format("{} runs each: too few for an interval", pairs);
  const Interval& interval = *variant.speed.interval;
  if (interval.high < 1 && variant.speed.value < 1 / (1 + kMinGain)) return "slower";
  if (!(interval.low > 1 && variant.speed.value > 1 + kMinGain)) return "no difference shown";
  return variant.parity.known ? "faster" : "more samples/s; loss parity not known";
}

std::string variant_name(const RunFigures& run, const RunFigures& base) {
  std::vector<std::string> changed;
  if (run.ranks != base.ranks) changed.push_back(fmt::format("ranks={}", run.ranks));
  for (const auto& [path, value] : run.data.settings) {
    if (!is_about_the_run(path) && setting(base.data, path) != value)
      changed.push_back(path + "=" + value);
  }
  std::string name;
  for (std::size_t i = 0; i < std::min<std::size_t>(2, changed.size()); ++i)
    name += (i > 0 ? ", " : "") + changed[i];
  if (changed.size() > 2) name += fmt::format(" and {} more", changed.size() - 2);
  return name.empty() ? run.label : name;
}

std::vector<Variant> compare_variants(const std::vector<RunFigures>& runs) {
  std::vector<Variant> variants;
  std::map<std::string, std::size_t> by_key;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto [found, added] = by_key.emplace(variant_key(runs[i]), variants.size());
    if (added)
      variants.push_back(
          {.name = variant_name(runs[i], runs[0]), .runs = {}, .parity = {}, .verdict = {}});
    variants[found->second].runs.push_back(i);
  }
  for (Variant& variant : variants) {
    std::string name = variant.name;
    variant = compare(runs, variants.front().runs, variant.runs);
    variant.name = std::move(name);
  }
  variants.front().name = "baseline";
  return variants;
}

/// "quickstart 5b2cc1" of the folder quickstart-20261123T024220Z-5b2cc1, as launches name them.
std::string short_name(const std::string& name) {
  const std::size_t id = name.rfind('-');
  const std::size_t time = id == std::string::npos || id == 0 ? id : name.rfind('-', id - 1);
  if (time == std::string::npos || time_in_name(name, name.substr(0, time)).empty()) return name;
  return name.substr(0, time) + " " + name.substr(id + 1);
}

}  // namespace

std::vector<std::string> other_task(const RunFigures& base, const RunFigures& test) {
  std::vector<std::string> keys;
  const auto add = [&](const std::string& key) {
    if (differ(base, test, key) && std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  };
  for (const RunFigures* run : {&base, &test}) {
    for (const auto& [key, value] : run->data.settings)
      if (key.starts_with("model.") && !leaves_the_model(key)) add(key);
  }
  for (const std::string_view key : kSampleKeys) add(std::string(key));
  const std::string of_base = text(base.data.plan, "model"),
                    of_test = text(test.data.plan, "model");
  if (keys.empty() && !of_base.empty() && !of_test.empty() && of_base != of_test)
    keys.emplace_back("model");
  return keys;
}

Variant compare(const std::vector<RunFigures>& all, const std::vector<std::size_t>& base,
                const std::vector<std::size_t>& test) {
  Variant variant{.name = {}, .runs = test, .parity = {}, .verdict = {}};
  std::vector<double> rates;
  for (const std::size_t run : test) {
    if (all[run].figures.value("samples_per_s") > 0)
      rates.push_back(all[run].figures.value("samples_per_s"));
  }
  if (!rates.empty()) variant.samples_per_s = median(rates);
  if (base == test) {
    variant.speed = {.value = 1};
    variant.verdict = "baseline";
    return variant;
  }
  if (const auto keys = other_task(all[base.front()], all[test.front()]); !keys.empty()) {
    variant.verdict = fmt::format("not compared: another {}", fmt::join(keys, ", "));
    return variant;
  }
  std::vector<double> of_base;
  std::vector<double> of_test;
  for (std::size_t i = 0; i < std::min(base.size(), test.size()); ++i) {
    const RunFigures& a = all[base[i]];
    const RunFigures& b = all[test[i]];
    if (a.figures.value("samples_per_s") > 0 && b.figures.value("samples_per_s") > 0) {
      of_base.push_back(a.figures.value("samples_per_s"));
      of_test.push_back(b.figures.value("samples_per_s"));
    }
    const LossParity parity = loss_parity(a, b);
    if (i == 0 || (parity.known && !parity.holds)) variant.parity = parity;
  }
  if (!of_base.empty()) variant.speed = paired_ratio(of_base, of_test);
  variant.verdict = verdict_of(variant, of_base.size());
  return variant;
}

Report make_report(std::vector<RunData> runs, const PredictStep& predict) {
  Report report;
  std::map<std::string, int> names;
  for (RunData& run : runs) {
    RunFigures figures = run_figures(std::move(run));
    figures.label = short_name(figures.label);
    const int count = ++names[figures.label];
    if (count > 1) figures.label += fmt::format(" ({})", count);
    figures.advice = advise(figures, predict);
    report.runs.push_back(std::move(figures));
  }
  if (report.runs.size() > 1) {
    report.variants = compare_variants(report.runs);
    report.differences = differing_settings(report.runs);
    report.warnings = comparison_warnings(report.runs);
  }
  return report;
}

}  // namespace dstrain::report
