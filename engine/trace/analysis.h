#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/trace/critical_path.h"

namespace dstrain::trace {

/// What rows of the table of kernels stand for.
enum class GroupBy { kernel, action, phase, block };

[[nodiscard]] const char* group_by_name(GroupBy by);

struct AnalysisOptions {
  std::optional<std::int64_t> first_step = {};  ///< with it and `last_step` only these steps
  std::optional<std::int64_t> last_step = {};
  std::vector<int> ranks = {};  ///< empty: all
  std::size_t top = 10;         ///< rows of each type in the table of kernels
  GroupBy by = GroupBy::kernel;
  bool salvage = false;  ///< goes on where a file is broken or cut off
};

/// Bits of a set of types.
enum TypeBit : unsigned { kCompute = 1, kCommunication = 2, kMemory = 4 };
/// "compute", "compute + communication", ...
[[nodiscard]] std::string type_set_name(unsigned bits);

/// How the time from the first start to the last end of the events of the device is spent. All in
/// nanoseconds and exact. Definitions: README.md, "Figures".
struct Breakdown {
  std::int64_t events = 0;
  std::int64_t window = 0;
  std::int64_t busy = 0;
  std::int64_t compute = 0;
  std::int64_t communication = 0;
  std::int64_t memory = 0;
  std::int64_t overlap = 0;                ///< of communication and compute
  std::array<std::int64_t, 8> types = {};  ///< by TypeBit: exactly this set of types was running

  [[nodiscard]] std::int64_t idle() const { return window - busy; }
  [[nodiscard]] std::int64_t non_compute() const { return busy - compute; }
  [[nodiscard]] std::int64_t exposed_communication() const { return communication - overlap; }
};

struct NamedTime {
  std::string name;
  std::int64_t ns = 0;
};

/// Delays of launches, nanoseconds; launches of every kind.
struct Launches {
  std::int64_t count = 0;     ///< events whose launch is in the trace
  std::int64_t without = 0;   ///< events whose launch is not
  std::int64_t negative = 0;  ///< begin before their launch has ended: faults of the clocks
  std::int64_t longer_than_kernel = 0;  ///< the call took longer than what it launched
  double mean = 0;
  std::int64_t median = 0, p95 = 0, max = 0;
  /// Time of the window in which nothing was launched and not yet started, and nothing ran.
  std::int64_t host_bound = 0;
  /// Gaps between events of the compute lane's stream, or of all that compute: until the launch of
  /// the next had ended; then until an action of another lane had ended that the next one waits
  /// for; and the rest.
  std::int64_t gap_host = 0, gap_dependency = 0, gap_rest = 0;
  std::vector<NamedTime> dependencies;  ///< those actions, largest first
  struct Queue {
    std::int64_t stream = 0;
    std::int64_t max = 0;
    double mean = 0;  ///< over time, from the first launch to the last start
  };
  std::vector<Queue> queues;
};

/// Memory of a rank's device as its allocator says, in bytes.
struct MemoryUse {
  std::int64_t peak_allocated = 0;
  std::int64_t peak_reserved = 0;
  std::string peak_action;    ///< in which the most was allocated; empty: not known
  std::int64_t planned = -1;  ///< -1: not known
  struct Step {
    std::int64_t step = 0;
    std::int64_t peak_allocated = 0;
    std::int64_t peak_reserved = 0;
    std::int64_t allocations = -1;  ///< -1: single ones are not in the trace (trace.memory)
    std::int64_t driver_calls = 0;  ///< of cudaMalloc: the allocator had to grow

    /// After the first steps the allocator should have all that it needs.
    [[nodiscard]] bool grew_late() const { return step > 3 && driver_calls > 0; }
  };
  std::vector<Step> steps;
};

struct CopyRate {
  std::string name;  ///< "Memcpy HtoD (Pinned -> Device)"
  std::int64_t count = 0, bytes = 0, ns = 0;
  double p5 = 0, median = 0, p95 = 0;  ///< bytes per second of single copies
};

/// Actions of a kind on one lane, as long as they took on the device: from the first to the last
/// event of each, which on the compute lane is work, gaps inside it and its own collectives.
struct KindTime {
  std::string lane;
  std::string kind;  ///< "forward", "backward_weight"
  std::int64_t count = 0;
  std::int64_t ns = 0;
  std::int64_t collectives = 0;  ///< of it, nanoseconds in the collectives of these actions
};

struct RankFigures {
  int rank = 0;
  std::string file;
  bool cpu = false;  ///< the events are actions on the host: there is no GPU in the trace
  Breakdown all;
  std::map<std::int64_t, Breakdown> steps;
  std::vector<NamedTime> exposed;    ///< exposed communication by action or kernel, largest first
  std::optional<Launches> launches;  ///< none: no launches in the trace
  std::optional<MemoryUse> memory;   ///< none: the trace does not say
  std::vector<CopyRate> copies;
  /// By lane, the compute lane first, then the longest; empty: the program is not known.
  std::vector<KindTime> kinds = {};
};

/// How many durations lie in each of equal parts of the logarithm from `from` to `to`,
/// nanoseconds of at least 1; one part where all are equal.
struct Histogram {
  std::int64_t from = 1;
  std::int64_t to = 1;
  std::vector<std::int64_t> counts;
};

/// A row of the table of kernels, over all ranks; nanoseconds.
struct KernelRow {
  std::string type;
  std::string name;
  std::int64_t count = 0;
  std::int64_t sum = 0;
  std::int64_t min = 0;
  std::int64_t max = 0;
  double mean = 0;
  double deviation = 0;  ///< of the sample (n - 1); 0 for one
  double share = 0;      ///< of the sum of all rows of every type
  double p5 = 0, p25 = 0, median = 0, p75 = 0, p95 = 0;
  Histogram histogram = {};
};

/// Collectives of one operation, group and size.
struct CollectiveRow {
  std::string operation;
  std::string group;
  int group_size = 0;
  std::int64_t bytes = 0;    ///< of the whole result; the least of the class
  std::int64_t count = 0;    ///< instances
  std::int64_t partial = 0;  ///< of these, not in the traces of all ranks: no wait is known
  std::int64_t median = 0, p5 = 0, p95 = 0;   ///< nanoseconds of the transfer
  std::optional<double> algorithm_rate = {};  ///< bytes per second at the median
  std::optional<double> bus_rate = {};
};

struct Straggler {
  int rank = 0;
  std::string group;
  std::int64_t instances = 0;  ///< in which it came last
  std::int64_t of = 0;         ///< instances of the group
  std::int64_t blame = 0;      ///< nanoseconds: mean waits of the others, added
  double share = 0;            ///< of the window
  std::string cause;           ///< "compute", "launch", "data"; empty: not known
};

struct RankWait {
  int rank = 0;
  std::int64_t wait = 0;  ///< nanoseconds in collectives until the last rank had come
  std::int64_t transfer = 0;
};

struct Collectives {
  std::vector<CollectiveRow> rows;
  std::vector<RankWait> waits;
  std::vector<Straggler> stragglers;
};

struct Analysis {
  GroupBy by = GroupBy::kernel;
  std::size_t top = 10;                    ///< rows of long tables in text
  std::vector<RankFigures> ranks;          ///< by rank
  std::vector<KernelRow> kernels;          ///< by type, largest first; `top` of each
  std::vector<KernelRow> rest;             ///< one row a type for all others
  std::optional<Collectives> collectives;  ///< none: no collective is described in the traces
  std::optional<CriticalPath> path;        ///< none: no rank has a program
  std::vector<std::string> notes;          ///< what was wrong or left out
};

/// `sources`: files, folders with files, or runs. Error{data} where a file is no trace or broken
/// (unless `salvage`), Error{usage} where nothing is left to analyze.
[[nodiscard]] Analysis analyze(const std::vector<std::filesystem::path>& sources,
                               const AnalysisOptions& options);

/// One object; times in nanoseconds as whole numbers, keys end in _ns.
[[nodiscard]] nlohmann::ordered_json to_json(const Analysis& analysis);
/// One table a figure, with units in the header.
[[nodiscard]] std::string to_text(const Analysis& analysis);
/// One file a figure: its name ("breakdown.csv") and its text.
[[nodiscard]] std::map<std::string, std::string> to_csv(const Analysis& analysis);

}  // namespace dstrain::trace
