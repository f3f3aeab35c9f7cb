#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/trace/intervals.h"

namespace dstrain::trace {

enum class EventType : std::uint8_t { compute, communication, memory };

/// Something that ran on a device: a kernel, a copy or a fill; in traces of a CPU an action.
struct GpuEvent {
  static constexpr std::int64_t kNoLaunch = std::numeric_limits<std::int64_t>::min();

  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;
  std::int64_t launch_end_ns = kNoLaunch;  ///< end of the call that launched it
  std::int64_t bytes = 0;                  ///< of a copy
  std::uint32_t name = 0;                  ///< in Names
  std::uint32_t action = 0;                ///< in Names: its name; "" where it is not known
  std::int32_t step = -1;
  std::uint16_t stream = 0;  ///< in RankEvents::streams
  EventType type = EventType::compute;
  bool long_launch = false;  ///< the call took longer than this event

  [[nodiscard]] std::int64_t end_ns() const { return start_ns + duration_ns; }
};
static_assert(sizeof(GpuEvent) == 48);

/// Texts by number; 0 is the empty one.
class Names {
 public:
  std::uint32_t add(std::string_view text);
  [[nodiscard]] const std::string& operator[](std::uint32_t number) const { return texts_[number]; }

 private:
  std::vector<std::string> texts_ = {""};
  std::unordered_map<std::string, std::uint32_t> numbers_ = {{"", 0}};
};

/// One collective on one rank.
struct Collective {
  int rank = 0;
  std::int32_t step = -1;
  std::uint32_t operation = 0;  ///< in Names: "all_gather", ...
  std::uint32_t group = 0;      ///< in Names: name and ranks of the communicator
  std::int32_t group_size = 0;
  std::int64_t sequence = -1;  ///< as the trace says; else its order in the communicator
  std::int64_t bytes = 0;      ///< of the whole result (reduce-scatter: of the whole input)
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;
  std::int32_t action = -1;  ///< in RankEvents::program
};

/// What rank{r}_actions.json says about an action.
struct ActionInfo {
  std::string name;
  std::string kind;
  std::string lane;
  std::string phase;
  std::string block;                     ///< or the group of parameters that is communicated
  std::vector<int> after = {};           ///< actions of other lanes that it waits for
  std::vector<int> after_previous = {};  ///< the same, of the step before
};

/// The lanes of the program that run blocks.
[[nodiscard]] inline bool runs_blocks(std::string_view lane) {
  return lane == "compute" || lane == "compute_beside";
}

/// All that an action did on the device in one step.
struct ActionRun {
  std::int32_t step = -1;
  std::uint32_t action = 0;  ///< in RankEvents::program
  std::uint16_t stream = 0;  ///< of its first event, in RankEvents::streams
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t launch_end_ns = GpuEvent::kNoLaunch;  ///< of its first event
  std::int64_t host_gap_ns = 0;  ///< between its events, until the launch of the next had ended
};

/// Bytes that the rank's allocator holds, at one time of the host.
struct MemoryPoint {
  std::int64_t at_ns = 0;
  std::int64_t allocated = -1;  ///< -1: not said
  std::int64_t reserved = -1;
  bool allocation = false;  ///< an allocation was made; else a reading
  std::int32_t step = -1;
  std::uint32_t action = 0;  ///< in Names: the innermost region of the host
};

struct RankEvents {
  int rank = 0;
  std::filesystem::path file;
  bool cpu = false;
  bool launches = false;  ///< the trace holds calls that launch
  std::vector<GpuEvent> events;
  std::vector<std::int64_t> streams;  ///< numbers as in the trace
  std::vector<Collective> collectives;
  std::map<std::string, ActionInfo> actions;  ///< by name; empty without the side file
  std::vector<ActionInfo> program;            ///< the same by index
  std::vector<ActionRun> runs;                ///< empty without the side file
  std::vector<MemoryPoint> memory;            ///< by time
  std::map<std::int32_t, std::int64_t> driver_allocations;  ///< calls of cudaMalloc by step
  std::int64_t planned_bytes = -1;   ///< that the plan's ledger allocates; -1: not known
  std::vector<Interval> data_waits;  ///< of the host in loads of samples
  std::vector<std::string> notes;
};

/// Order of events of one stream.
[[nodiscard]] bool by_time(const GpuEvent* a, const GpuEvent* b);
/// Part of the gap from `free` to the start of `event` until its launch had ended; 0 where one
/// launch, of a graph, ran `before`, the event before it, too.
[[nodiscard]] std::int64_t host_part(const GpuEvent& event, const GpuEvent& before,
                                     std::int64_t free);

/// Reads a file; several ranks where it is merged. Error{data} where it is broken, unless
/// `salvage`, which makes it a note.
[[nodiscard]] std::vector<RankEvents> load_events(const std::filesystem::path& file, Names& names,
                                                  bool salvage);

/// "all_gather" for any of the names that c10d, NCCL and we give it; the name itself where unknown.
[[nodiscard]] std::string collective_operation(std::string_view name);

}  // namespace dstrain::trace
