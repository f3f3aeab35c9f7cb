#include "engine/trace/gpu_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <tuple>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/printable.h"
#include "engine/trace/input_stream.h"
#include "engine/trace/scanner.h"
#include "engine/trace/trace_files.h"

namespace dstrain::trace {
namespace {

constexpr int kNoRank = -1;

/// A call of the host that launches work.
struct LaunchCall {
  std::int64_t correlation = 0;
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;
};
/// A user's region on the host.
struct Region {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::uint32_t name = 0;
  std::int32_t step = -1;  ///< of ProfilerStep#N
};

/// The regions around one time of the host after the other.
class OpenRegions {
 public:
  /// Keeps the reference. By start, the outer one first.
  explicit OpenRegions(const std::vector<Region>& regions) : regions_(regions) {}

  struct Place {
    std::int32_t step = -1;
    std::uint32_t name = 0;  ///< of the innermost region that is no step
  };
  /// Takes a time that is not before the last one. What has ended once never counts again.
  Place at(std::int64_t time) {
    for (; next_ < regions_.size() && regions_[next_].start_ns <= time; ++next_)
      (regions_[next_].step < 0 ? named_ : steps_).push_back(&regions_[next_]);
    while (!named_.empty() && named_.back()->end_ns <= time) named_.pop_back();
    while (!steps_.empty() && steps_.front()->end_ns <= time) steps_.pop_front();
    return {.step = steps_.empty() ? -1 : steps_.front()->step,
            .name = named_.empty() ? 0 : named_.back()->name};
  }

 private:
  const std::vector<Region>& regions_;
  std::deque<const Region*> named_;  ///< the innermost last
  std::deque<const Region*> steps_;  ///< the outermost first
  std::size_t next_ = 0;
};

std::int64_t element_bytes(std::string_view type) {
  struct Size {
    std::string_view name;
    std::int64_t bytes;
  };
  static constexpr std::array kSizes = {
      Size{"Double", 8}, Size{"Long", 8},  Size{"Float8", 1},
      Size{"Float", 4},  Size{"Int", 4},   Size{"BFloat16", 2},
      Size{"Half", 2},   Size{"Short", 2}, Size{"ComplexFloat", 8}};
  for (const Size& size : kSizes)
    if (type.starts_with(size.name)) return size.bytes;
  return 1;  // Byte, Char, Bool
}

/// A kernel of NCCL, AMD's RCCL, MSCCL or NVSHMEM; with "void " before it where it is a template.
bool is_communication_name(std::string_view name) {
  constexpr std::string_view kResult = "void ";
  if (name.starts_with(kResult)) name.remove_prefix(kResult.size());
  const auto begins = [&](std::string_view text) { return name.starts_with(text); };
  static constexpr std::array<std::string_view, 5> kBegins = {"nccl", "rccl", "msccl", "nvshmem",
                                                              "rocshmem"};
  return std::ranges::any_of(kBegins, begins) ||
         name.find("ncclKernel") != std::string_view::npos ||
         name.find("ncclDevKernel") != std::string_view::npos;
}

bool communicates(const ActionInfo& action) {
  static constexpr std::array<std::string_view, 6> kKinds = {"gather", "reduce", "gather_sum",
                                                             "norm",   "send",   "receive"};
  return !action.lane.empty() && action.lane != "compute" &&
         std::find(kKinds.begin(), kKinds.end(), action.kind) != kKinds.end();
}

/// N of "ProfilerStep#N".
std::optional<std::int32_t> step_number(std::string_view name) {
  constexpr std::string_view kPrefix = "ProfilerStep#";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int32_t number = 0;
  for (const char c : name.substr(kPrefix.size())) {
    if (c < '0' || c > '9' || number > 200'000'000) return std::nullopt;
    number = 10 * number + (c - '0');
  }
  return number;
}

/// Ranks and names of one file, with what is only needed while it is read.
class Loader {
 public:
  Loader(std::filesystem::path file, Names& names) : file_(std::move(file)), names_(names) {}

  std::vector<RankEvents> load(bool salvage) {
    Scanner scanner(file_);
    Event event;
    while (scanner.next(event)) {
      event.duration_ns = std::max<std::int64_t>(event.duration_ns, 0);
      take(event);
    }
    const std::uint64_t problems = scanner.problems();
    if (problems > 0) {
      const ScanProblem& first = scanner.first_problems().front();
      const std::string what =
          fmt::format("{}: {} (at byte {}; {} such places)", printable(file_.string()), first.what,
                      first.offset, problems);
      if (!salvage) throw Error(ErrorKind::data, what, "--salvage goes on with what is readable");
      file_notes_.push_back(what);
    }
    const std::int64_t late_base = scanner.late_base_ns();
    const int own_rank = rank_of_trace(file_, scanner.top("distributedInfo")).value_or(0);
    if (std::string note = scanner.negative_durations(own_rank); !note.empty())
      file_notes_.push_back(std::move(note));
    std::vector<RankEvents> loaded;
    for (auto& [rank, state] : ranks_) {
      RankEvents& events = state->events;
      events.memory = std::move(memory_[rank]);
      events.rank = rank == kNoRank ? own_rank : rank;
      events.file = file_;
      finish(*state, late_base);
      loaded.push_back(std::move(events));
    }
    if (!loaded.empty()) {
      if (const auto incomplete = incomplete_reason(scanner); !incomplete.empty())
        loaded.front().notes.push_back(
            fmt::format("{}: events are missing: {}", printable(file_.string()), incomplete));
      loaded.front().notes.insert(loaded.front().notes.end(), file_notes_.begin(),
                                  file_notes_.end());
    }
    return loaded;
  }

 private:
  struct RankState {
    RankEvents events;
    std::vector<GpuEvent> lanes;  ///< rows of a CPU's trace
    std::vector<std::int64_t> correlations, action_numbers;
    std::vector<LaunchCall> calls;
    std::vector<Region> regions;
    std::vector<std::size_t> collective_event;
    std::vector<std::int64_t> driver_allocations;  ///< when
    std::vector<std::int64_t> lane_actions;
    std::map<std::string, std::int64_t, std::less<>> lane_rows;
    std::unordered_map<std::int64_t, std::uint16_t> stream_numbers;  ///< in RankEvents::streams
  };

  RankState& state(int rank) {
    auto& found = ranks_[rank];
    if (!found) found = std::make_unique<RankState>();
    return *found;
  }

  void take(const Event& event) {
    if (event.phase == 'C' || event.phase == 'i') return take_memory(event);
    if (event.phase != 'X') return;
    const std::string_view category = event.category;
    const bool kernel = category == "kernel" || category == "Kernel";
    const bool memory = category == "gpu_memcpy" || category == "gpu_memset" ||
                        category == "Memcpy" || category == "Memset";
    const bool call = category == "cuda_runtime" || category == "cuda_driver";
    const bool region = category == "user_annotation";
    const bool lane = category == "dstrain_lane";
    if (!kernel && !memory && !call && !region && !lane) return;
    const int rank = static_cast<int>(find_integer(event.args, "rank").value_or(kNoRank));
    RankState& in = state(rank);
    if (call) {
      if (event.name.starts_with("cudaMalloc") && !event.name.starts_with("cudaMallocHost"))
        in.driver_allocations.push_back(event.start_ns);
      if (const auto id = find_integer(event.args, "correlation"); id && *id > 0)
        in.calls.push_back({*id, event.start_ns, event.duration_ns});
    } else if (region) {
      const std::string name = unescape(event.name);
      if (name.starts_with("load,") || name == "load")
        in.events.data_waits.push_back({event.start_ns, event.start_ns + event.duration_ns});
      in.regions.push_back({event.start_ns, event.start_ns + event.duration_ns, names_.add(name),
                            step_number(name).value_or(-1)});
    } else {
      device_event(in, rank, event, memory, lane);
    }
  }

  /// Our counters, and PyTorch's events of the allocator on a GPU.
  void take_memory(const Event& event) {
    const auto value = [&](std::string_view key) {
      return find_integer(event.args, key).value_or(-1);
    };
    MemoryPoint point{.at_ns = event.start_ns};
    if (event.phase == 'C' && event.name == "memory allocated") {
      point.allocated = value("value");
    } else if (event.phase == 'C' && event.name == "memory reserved") {
      point.reserved = value("value");
    } else if (event.phase == 'i' && event.name == "[memory]" && value("Device Type") == 1) {
      point.allocated = value("Total Allocated");
      point.reserved = value("Total Reserved");
      point.allocation = value("Bytes") > 0;
    } else {
      return;
    }
    memory_[static_cast<int>(find_integer(event.args, "rank").value_or(kNoRank))].push_back(point);
  }

  void device_event(RankState& in, int rank, const Event& event, bool memory, bool lane) {
    GpuEvent added;
    const std::string name = unescape(event.name);
    added.start_ns = event.start_ns;
    added.duration_ns = event.duration_ns;
    added.name = names_.add(name);
    added.step = static_cast<std::int32_t>(find_integer(event.args, "step").value_or(-1));
    const std::int64_t action = find_integer(event.args, "action").value_or(-1);
    if (lane) {
      const auto row = in.lane_rows.try_emplace(std::string(event.tid),
                                                static_cast<std::int64_t>(in.lane_rows.size()));
      added.stream = static_cast<std::uint16_t>(row.first->second);
      in.lanes.push_back(added);
      in.lane_actions.push_back(action);
      return;
    }
    added.stream = stream_number(in, find_integer(event.args, "stream").value_or(-1));
    added.bytes = find_integer(event.args, "bytes").value_or(0);
    const auto collective = find_argument(event.args, "Collective name");
    added.type = collective || is_communication_name(name) ? EventType::communication
                 : memory                                  ? EventType::memory
                                                           : EventType::compute;
    if (collective) add_collective(in, rank, event, unescape(*collective));
    in.events.events.push_back(added);
    in.correlations.push_back(find_integer(event.args, "correlation").value_or(-1));
    in.action_numbers.push_back(action);
  }

  static std::uint16_t stream_number(RankState& in, std::int64_t stream) {
    auto& streams = in.events.streams;
    const auto [found, added] =
        in.stream_numbers.try_emplace(stream, static_cast<std::uint16_t>(streams.size()));
    if (!added) return found->second;
    if (streams.size() >= 65'535)
      throw Error(ErrorKind::data, "a trace with more than 65,535 streams", "check the file");
    streams.push_back(stream);
    return found->second;
  }

  void add_collective(RankState& in, int rank, const Event& event, const std::string& name) {
    const auto text = [&](std::string_view key) {
      const auto found = find_argument(event.args, key);
      return found ? unescape(*found) : std::string();
    };
    Collective added;
    added.rank = rank;
    const std::string operation = collective_operation(name);
    added.operation = names_.add(operation);
    const std::string ranks = text("Process Group Ranks");
    const std::string group = text("Process Group Name");
    added.group = names_.add(ranks.empty() ? group : fmt::format("{} {}", group, ranks));
    added.group_size =
        static_cast<std::int32_t>(find_integer(event.args, "Group size").value_or(0));
    added.sequence = find_integer(event.args, "Seq").value_or(-1);
    const std::int64_t in_elements = find_integer(event.args, "In msg nelems").value_or(0);
    const std::int64_t out_elements = find_integer(event.args, "Out msg nelems").value_or(0);
    // No element has more bytes; what a broken trace says must not overflow.
    constexpr std::int64_t kMaxElements = std::numeric_limits<std::int64_t>::max() / 16;
    added.bytes =
        element_bytes(text("dtype")) *
        std::clamp<std::int64_t>(
            operation == "all_gather" || operation == "receive" ? out_elements : in_elements, 0,
            kMaxElements);
    added.start_ns = event.start_ns;
    added.duration_ns = event.duration_ns;
    in.collective_event.push_back(in.events.events.size());
    in.events.collectives.push_back(added);
  }

  static std::string incomplete_reason(const Scanner& scanner) {
    const auto ours = scanner.top("dstrain");
    if (!ours) return "";
    const auto reason = find_argument(*ours, "incomplete");
    return reason ? printable(unescape(*reason)) : "";
  }

  /// Actions by index, from the file beside the trace.
  std::vector<ActionInfo> read_actions(RankEvents& events) const {
    const auto path = file_.parent_path() / fmt::format("rank{}_actions.json", events.rank);
    if (!has_trace_file(path)) return {};
    const JsonLimits limits;
    const std::string text = read_text(path, limits.bytes);
    const nlohmann::json read = parse_json(text, path.string(), limits);
    if (!read.is_object())
      throw Error(ErrorKind::data, fmt::format("{}: no object", printable(path.string())),
                  "remove the file, then names and arguments of the trace are used alone");
    std::vector<ActionInfo> actions;
    const auto list = read.find("actions");
    if (list == read.end() || !list->is_array())
      throw Error(ErrorKind::data, fmt::format("{}: no list 'actions'", printable(path.string())),
                  "remove the file, then names and arguments of the trace are used alone");
    for (const nlohmann::json& item : *list) {
      const auto field = [&](const char* key) {
        const auto value = item.is_object() ? item.find(key) : item.end();
        return item.is_object() && value != item.end() && value->is_string()
                   ? value->get<std::string>()
                   : std::string();
      };
      const auto numbers = [&](const char* key) {
        std::vector<int> found;
        const auto value = item.is_object() ? item.find(key) : item.end();
        if (!item.is_object() || value == item.end() || !value->is_array()) return found;
        for (const nlohmann::json& number : *value) {
          if (number.is_number_integer()) found.push_back(number.get<int>());
        }
        return found;
      };
      actions.push_back({.name = field("name"),
                         .kind = field("kind"),
                         .lane = field("lane"),
                         .phase = field("phase"),
                         .block = field("block").empty() ? field("group") : field("block"),
                         .after = numbers("after"),
                         .after_previous = numbers("after_previous")});
    }
    if (const auto memory = read.find("memory"); memory != read.end() && memory->is_object()) {
      const auto planned = memory->find("planned");
      if (planned != memory->end() && planned->is_number_integer())
        events.planned_bytes = planned->get<std::int64_t>();
    }
    return actions;
  }

  void finish(RankState& in, std::int64_t late_base) {
    RankEvents& events = in.events;
    // Rows of lanes repeat what the GPU's own events say; on a CPU there is nothing else.
    if (events.events.empty() && !in.lanes.empty()) {
      events.cpu = true;
      events.events = std::move(in.lanes);
      in.action_numbers = std::move(in.lane_actions);
      in.correlations.assign(events.events.size(), -1);
      for (std::size_t i = 0; i < in.lane_rows.size(); ++i)
        events.streams.push_back(static_cast<std::int64_t>(i));
    }
    link(in);
    apply_actions(in);
    for (std::size_t i = 0; i < events.collectives.size(); ++i) {
      events.collectives[i].rank = events.rank;
      events.collectives[i].step = events.events[in.collective_event[i]].step;
      if (!events.program.empty()) {
        events.collectives[i].action =
            static_cast<std::int32_t>(in.action_numbers[in.collective_event[i]]);
      }
    }
    place_on_host(in);
    for (GpuEvent& event : events.events) {
      event.start_ns += late_base;
      if (event.launch_end_ns != GpuEvent::kNoLaunch) event.launch_end_ns += late_base;
    }
    for (Collective& collective : events.collectives) collective.start_ns += late_base;
    for (ActionRun& run : events.runs) {
      run.start_ns += late_base;
      run.end_ns += late_base;
      if (run.launch_end_ns != GpuEvent::kNoLaunch) run.launch_end_ns += late_base;
    }
    for (MemoryPoint& point : events.memory) point.at_ns += late_base;
    for (Interval& wait : events.data_waits) {
      wait.begin += late_base;
      wait.end += late_base;
    }
  }

  /// Launch, and where the trace does not say them, step and innermost region, of each event.
  void link(RankState& in) {
    auto& calls = in.calls;
    std::sort(calls.begin(), calls.end(), [](const LaunchCall& a, const LaunchCall& b) {
      return std::tie(a.correlation, a.start_ns) < std::tie(b.correlation, b.start_ns);
    });
    auto& regions = in.regions;
    std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) {
      return std::tie(a.start_ns, b.end_ns) < std::tie(b.start_ns, a.end_ns);
    });
    struct Launched {
      std::int64_t time = 0;
      std::size_t event = 0;
    };
    std::vector<Launched> launched;
    for (std::size_t i = 0; i < in.events.events.size(); ++i) {
      GpuEvent& event = in.events.events[i];
      const auto call =
          std::lower_bound(calls.begin(), calls.end(), in.correlations[i],
                           [](const LaunchCall& c, std::int64_t id) { return c.correlation < id; });
      if (call == calls.end() || call->correlation != in.correlations[i]) continue;
      in.events.launches = true;
      event.launch_end_ns = call->start_ns + call->duration_ns;
      event.long_launch = call->duration_ns > event.duration_ns;
      launched.push_back({call->start_ns, i});
    }
    std::sort(launched.begin(), launched.end(), [](const Launched& a, const Launched& b) {
      return std::tie(a.time, a.event) < std::tie(b.time, b.event);
    });
    OpenRegions open(regions);
    for (const Launched& item : launched) {
      GpuEvent& event = in.events.events[item.event];
      const OpenRegions::Place place = open.at(item.time);
      if (event.step < 0) event.step = place.step;
      event.action = place.name;
    }
  }

  /// Step and region of what happened on the host: points of memory, calls of cudaMalloc.
  static void place_on_host(RankState& in) {
    struct Moment {
      std::int64_t at = 0;
      MemoryPoint* point = nullptr;
    };
    std::vector<Moment> moments;
    // A reading stands at the end of its region.
    for (MemoryPoint& point : in.events.memory)
      moments.push_back({point.allocation ? point.at_ns : point.at_ns - 1, &point});
    for (const std::int64_t at : in.driver_allocations) moments.push_back({at, nullptr});
    std::ranges::stable_sort(moments, {}, &Moment::at);
    OpenRegions open(in.regions);
    for (const Moment& moment : moments) {
      const OpenRegions::Place place = open.at(moment.at);
      if (moment.point == nullptr) {
        if (place.step >= 0) ++in.events.driver_allocations[place.step];
        continue;
      }
      moment.point->step = place.step;
      moment.point->action = place.name;
    }
    std::ranges::stable_sort(in.events.memory, {}, &MemoryPoint::at_ns);
  }

  /// What each action did in each step.
  static void make_runs(RankState& in) {
    std::map<std::pair<std::int32_t, std::int64_t>, std::vector<const GpuEvent*>> by_action;
    for (std::size_t i = 0; i < in.events.events.size(); ++i) {
      const GpuEvent& event = in.events.events[i];
      const std::int64_t action = in.action_numbers[i];
      if (action < 0 || action >= static_cast<std::int64_t>(in.events.program.size())) continue;
      by_action[{event.step, action}].push_back(&event);
    }
    for (auto& [key, events] : by_action) {
      std::ranges::sort(events, by_time);
      const GpuEvent& first = *events.front();
      ActionRun run{.step = first.step,
                    .action = static_cast<std::uint32_t>(key.second),
                    .stream = first.stream,
                    .start_ns = first.start_ns,
                    .end_ns = first.end_ns(),
                    .launch_end_ns = first.launch_end_ns};
      for (std::size_t i = 1; i < events.size(); ++i) {
        run.host_gap_ns += host_part(*events[i], *events[i - 1], run.end_ns);
        run.end_ns = std::max(run.end_ns, events[i]->end_ns());
      }
      in.events.runs.push_back(run);
    }
  }

  void apply_actions(RankState& in) {
    const std::vector<ActionInfo>& actions = in.events.program = read_actions(in.events);
    if (actions.empty()) {
      if (!in.events.cpu) return;
      // Traces of a CPU name the action in the event itself.
      for (GpuEvent& event : in.events.events) event.action = event.name;
      in.events.notes.push_back(
          fmt::format("rank {}: no rank{}_actions.json beside its trace, so communication counts "
                      "as compute: analyze the trace where the run left it",
                      in.events.rank, in.events.rank));
      return;
    }
    std::vector<std::uint32_t> numbers;
    for (const ActionInfo& action : actions) {
      numbers.push_back(names_.add(action.name));
      in.events.actions[action.name] = action;
    }
    for (std::size_t i = 0; i < in.events.events.size(); ++i) {
      const std::int64_t index = in.action_numbers[i];
      GpuEvent& event = in.events.events[i];
      if (index < 0 || index >= static_cast<std::int64_t>(actions.size())) {
        event.action = 0;
        continue;
      }
      const ActionInfo& action = actions[static_cast<std::size_t>(index)];
      event.action = numbers[static_cast<std::size_t>(index)];
      if (communicates(action)) event.type = EventType::communication;
    }
    make_runs(in);
  }

  std::filesystem::path file_;
  Names& names_;
  std::map<int, std::unique_ptr<RankState>> ranks_;
  std::map<int, std::vector<MemoryPoint>> memory_;  ///< as ranks_
  std::vector<std::string> file_notes_;
};

}  // namespace

bool by_time(const GpuEvent* a, const GpuEvent* b) {
  return std::tuple(a->start_ns, a->end_ns(), a->launch_end_ns) <
         std::tuple(b->start_ns, b->end_ns(), b->launch_end_ns);
}

std::int64_t host_part(const GpuEvent& event, const GpuEvent& before, std::int64_t free) {
  const std::int64_t gap = event.start_ns - free;
  if (gap <= 0 || event.launch_end_ns == GpuEvent::kNoLaunch) return 0;
  if (event.launch_end_ns == before.launch_end_ns) return 0;
  return std::clamp<std::int64_t>(event.launch_end_ns - free, 0, gap);
}

std::uint32_t Names::add(std::string_view text) {
  const auto [found, added] =
      numbers_.try_emplace(std::string(text), static_cast<std::uint32_t>(texts_.size()));
  if (added) texts_.emplace_back(text);
  return found->second;
}

std::string collective_operation(std::string_view name) {
  struct Alias {
    std::string_view part;
    std::string_view operation;
  };
  static constexpr std::array kAliases = {Alias{"reduce_scatter", "reduce_scatter"},
                                          Alias{"allgather", "all_gather"},
                                          Alias{"all_gather", "all_gather"},
                                          Alias{"allreduce", "all_reduce"},
                                          Alias{"all_reduce", "all_reduce"},
                                          Alias{"all_to_all", "all_to_all"},
                                          Alias{"alltoall", "all_to_all"},
                                          Alias{"broadcast", "broadcast"},
                                          Alias{"barrier", "barrier"},
                                          Alias{"recv", "receive"},
                                          Alias{"receive", "receive"},
                                          Alias{"send", "send"},
                                          Alias{"reduce", "reduce"}};
  for (const Alias& alias : kAliases)
    if (name.find(alias.part) != std::string_view::npos) return std::string(alias.operation);
  return std::string(name);
}

std::vector<RankEvents> load_events(const std::filesystem::path& file, Names& names, bool salvage) {
  return Loader(file, names).load(salvage);
}

}  // namespace dstrain::trace
