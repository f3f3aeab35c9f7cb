#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/trace/action_runs.h"
#include "engine/trace/analysis.h"
#include "engine/trace/gpu_events.h"

/// The figures of `analyze`, over events that are loaded. None depends on the order of events.
namespace dstrain::trace {

[[nodiscard]] Breakdown breakdown(const std::vector<GpuEvent>& events);

/// Name under which time is added up, e.g. of an action.
using EventLabel = std::function<std::string(const GpuEvent&)>;

/// Communication that no compute hides, by label, largest first. Where several communicate at once
/// the time belongs to the one that began first, so that the sum is the exposed communication.
[[nodiscard]] std::vector<NamedTime> exposed_by_label(const std::vector<GpuEvent>& events,
                                                      const EventLabel& label);

/// None where no launch is known.
[[nodiscard]] std::optional<Launches> launches(const RankEvents& rank);
/// Empty where the rank has no program.
[[nodiscard]] std::vector<KindTime> kind_times(const RankEvents& rank);
/// None where the trace says nothing of memory.
[[nodiscard]] std::optional<MemoryUse> memory_use(const RankEvents& rank, const Names& names);
/// Copies whose bytes are known, by name.
[[nodiscard]] std::vector<CopyRate> copy_rates(const std::vector<GpuEvent>& events,
                                               const Names& names);

/// Adds up events by type and name, rank by rank.
class KernelTable {
 public:
  void add(const std::vector<GpuEvent>& events, const EventLabel& label);
  /// The `top` largest of each type, and in `rest` one row a type for all others.
  [[nodiscard]] std::vector<KernelRow> rows(std::size_t top, std::vector<KernelRow>& rest) const;

 private:
  struct Sum {
    std::int64_t count = 0, sum = 0, min = 0, max = 0;
    double mean = 0, squares = 0;  ///< Welford
    std::vector<std::int64_t> durations;
    void add(std::int64_t ns);
    void add(const Sum& other);
  };
  static KernelRow row(EventType type, const std::string& name, const Sum& sum, double whole);
  std::map<std::pair<EventType, std::string>, Sum> sums_;
};

/// Numbers the collectives that have no sequence: their order in communicator and operation.
void number_by_order(std::vector<Collective>& all);
/// Instances of all ranks, numbered, are joined by communicator, operation and sequence. `window`:
/// of a rank, nanoseconds, for the share of stragglers. `lanes`: by rank, where known, for the
/// causes of stragglers.
[[nodiscard]] Collectives collectives(const std::vector<Collective>& all, const Names& names,
                                      std::int64_t window,
                                      const std::map<int, LaneTime>& lanes = {});

/// Factor from the rate of an algorithm to the rate of the bus (nccl-tests).
[[nodiscard]] double bus_factor(std::string_view operation, int group_size);

[[nodiscard]] const char* type_name(EventType type);
/// Histogram of durations that are not empty.
[[nodiscard]] Histogram histogram_of(const std::vector<std::int64_t>& durations);
/// The value below which `share` of the sorted values lie, interpolated; 0 of none.
[[nodiscard]] double quantile(const std::vector<double>& sorted, double share);

}  // namespace dstrain::trace
