#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/trace/gpu_events.h"

namespace dstrain::trace {

/// A row of HTA's table of a trace; whole microseconds.
struct HtaEvent {
  std::int64_t index = 0;  ///< in traceEvents
  std::int64_t start = 0;
  std::int64_t duration = 0;  ///< -1 for what is shorter than a microsecond and crosses none
  std::int64_t stream = -1;
  std::int64_t correlation = -1;
  std::int64_t link = -1;  ///< index of the event that is correlated; 0: not in the trace
  std::uint32_t name = 0;
  bool kernel = false;  ///< by its category

  [[nodiscard]] std::int64_t end() const { return start + duration; }
};

struct HtaRank {
  int rank = 0;
  std::vector<HtaEvent> rows;
};

/// Rows that a figure looks at, linked and filtered as HTA does when it loads traces.
[[nodiscard]] std::vector<HtaRank> load_hta_events(const std::vector<std::filesystem::path>& files,
                                                   Names& names, bool salvage);

}  // namespace dstrain::trace
