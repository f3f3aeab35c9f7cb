#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/trace/analysis.h"

namespace dstrain::trace {

/// A time in two traces; nanoseconds of a step, mean of ranks and steps.
struct DiffRow {
  std::string type;  ///< "" for totals
  std::string name;
  double base = 0;
  double test = 0;
  double base_count = 0;  ///< of a step and rank
  double test_count = 0;

  [[nodiscard]] double difference() const { return test - base; }
};

struct Diff {
  GroupBy by = GroupBy::kernel;
  std::int64_t base_steps = 0, test_steps = 0;  ///< of a rank; 1 where the traces name no steps
  std::size_t base_ranks = 0, test_ranks = 0;
  std::vector<DiffRow> totals;  ///< first "time": from the first start to the last end
  std::vector<DiffRow> rows;    ///< largest difference first
  std::vector<std::string> notes;

  /// Percent by which the time of a step grew.
  [[nodiscard]] double growth() const;
};

/// Takes analyses with all rows (`top` without a bound).
[[nodiscard]] Diff diff(const Analysis& base, const Analysis& test);
[[nodiscard]] nlohmann::ordered_json to_json(const Diff& diff);
[[nodiscard]] std::string to_text(const Diff& diff, std::size_t top);

}  // namespace dstrain::trace
