#pragma once

#include <string>
#include <vector>

#include "engine/report/figures.h"

namespace dstrain::report {

/// Whether the loss of a variant is that of the baseline at equal samples.
struct LossParity {
  bool known = false;
  bool holds = false;
  double base = kUnknown;  ///< mean loss over the last tenth of the common samples
  double variant = kUnknown;
};

/// Settings in which two runs differ so that neither their rates nor their losses say anything of
/// each other: the model and what a sample is. "model" where only plan.json tells it.
[[nodiscard]] std::vector<std::string> other_task(const RunFigures& base, const RunFigures& test);

/// Runs of one recipe on one number of ranks and kind of device.
struct Variant {
  std::string name;
  std::vector<std::size_t> runs;         ///< in Report::runs, in the order given
  double samples_per_s = kUnknown;       ///< median of the runs
  /// Samples/s beside the baseline; of the baseline 1; unknown where other_task() names something.
  Estimate speed = {.value = kUnknown};
  LossParity parity;
  std::string verdict;
};

/// The runs `test` beside the runs `base`, both of `all`, paired in their order; equal ones are the
/// baseline.
[[nodiscard]] Variant compare(const std::vector<RunFigures>& all,
                              const std::vector<std::size_t>& base,
                              const std::vector<std::size_t>& test);

struct SettingDifference {
  std::string key;
  std::vector<std::string> values;  ///< by run
};

struct Report {
  std::vector<RunFigures> runs;   ///< the baseline first
  std::vector<Variant> variants;  ///< the baseline first; empty for one run
  std::vector<SettingDifference> differences;
  std::vector<std::string> warnings;  ///< why speeds may not be comparable
};

/// Figures of runs, and of runs beside the first one. Repeats are paired in the order given.
[[nodiscard]] Report make_report(std::vector<RunData> runs, const PredictStep& predict);

}  // namespace dstrain::report
