#include "engine/program/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/units.h"

namespace dstrain {

namespace {

/// Trained groups, in the order in which the next forward reads them.
std::vector<int> trained_groups(const Layout& layout, const ModelCost& cost) {
  std::vector<int> list;
  for (const BlockCost& block : cost.blocks) {
    for (const int g : block.groups) {
      if (layout.groups[to_index(g)].trainable && std::ranges::find(list, g) == list.end())
        list.push_back(g);
    }
  }
  return list;
}

/// Seconds per element that an update keeps each resource busy.
struct UpdateCost {
  double link_s = 0;    ///< between host and device, both ways at once
  double cores_s = 0;   ///< of the CPU
  double memory_s = 0;  ///< of the host
};

/// A copy moves each byte through the host's memory once; the CPU reads and writes states, and its
/// gradient comes and its result goes by a copy.
UpdateCost streamed_cost(const GroupLayout& kind, const Layout& layout, const Machine& machine) {
  const double bytes = 2.0 * state_slot_width(kind, layout.widths);
  return {.link_s = bytes / machine.host_duplex_bytes_per_s,
          .memory_s = bytes / host_memory_rate(layout, machine, machine.host_memory_bytes_per_s)};
}
UpdateCost host_cost(const GroupLayout& kind, const Layout& layout, const Machine& machine) {
  const StateWidths& w = layout.widths;
  const double copied = gradient_slot_width(kind, w);
  const double updated =
      w.gradient + 2.0 * (w.master + w.moments) + (w.parameters_are_states() ? 2 : 1) * w.compute;
  return {.cores_s = updated / machine.host_update_bytes_per_s,
          .memory_s = (updated + copied) /
                      host_memory_rate(layout, machine, machine.host_memory_bytes_per_s)};
}

/// What the groups so far keep busy.
struct Load {
  UpdateCost busy;
  [[nodiscard]] Load with(const UpdateCost& cost, double elements) const {
    return {{busy.link_s + elements * cost.link_s, busy.cores_s + elements * cost.cores_s,
             busy.memory_s + elements * cost.memory_s}};
  }
  [[nodiscard]] double time_s() const {
    return std::max({busy.link_s, busy.cores_s, busy.memory_s});
  }
};

/// Gives each group to the one with which all are done first, in order. The seconds of that.
double divide(Layout& layout, const std::vector<int>& groups, OffloadUpdate update,
              const Machine& machine) {
  Load load;
  for (const int g : groups) {
    GroupLayout& kind = layout.groups[to_index(g)];
    if (!layout.offloaded(g)) continue;
    const auto elements = static_cast<double>(layout.own_elements(g));
    const Load streamed = load.with(streamed_cost(kind, layout, machine), elements),
               host = load.with(host_cost(kind, layout, machine), elements);
    const bool device_can = access_of(kind.state_place) == Access::direct &&
                            access_of(kind.parameter_place) == Access::direct;
    // States on the device are updated there.
    bool by_device = kind.state_place == Place::device || update == OffloadUpdate::gpu;
    if (!by_device && update == OffloadUpdate::automatic && device_can && !machine.shares_memory)
      by_device = streamed.time_s() <= host.time_s();
    kind.update_method = by_device ? UpdateMethod::streamed : UpdateMethod::host;
    load = by_device ? streamed : host;
  }
  return load.time_s();
}

void place_parameters(Layout& layout, Place place) {
  if (place == Place::device) return;
  for (GroupLayout& kind : layout.groups) {
    if (kind.parameters == Partition::replicated && layout.data_ranks() > 1) {
      throw Error(ErrorKind::usage,
                  fmt::format("memory.offload.parameters: every one of {} data ranks has all "
                              "parameters at rest",
                              layout.data_ranks()),
                  "set parallel.zero.stage: 3, or run one data rank");
    }
    if (kind.parameters == Partition::replicated && kind.trainable &&
        kind.states == Partition::sharded) {
      throw Error(ErrorKind::usage,
                  "memory.offload.parameters: tensor or sequence ranks share the states of "
                  "parameters that each of them has whole at rest",
                  "set parallel.zero.stage: 3, or 0");
    }
    kind.parameter_place = place;
  }
}

/// A program lists the actions of each chunk, and they are compared in pairs.
void require_few_chunks(std::int64_t chunk, const Layout& layout, const std::vector<int>& groups) {
  constexpr std::int64_t kMaxChunks = 1024;  // of a group
  std::int64_t largest = 0;
  for (const int g : groups) largest = std::max(largest, layout.own_elements(g));
  if (ceil_div(largest, chunk) <= kMaxChunks) return;
  throw Error(ErrorKind::usage,
              fmt::format("memory.offload.chunk: {} elements divide the {} of the largest group of "
                          "parameters into more than {}",
                          chunk, largest, kMaxChunks),
              fmt::format("use at least {}", round_up(ceil_div(largest, kMaxChunks), 128)));
}

}  // namespace

PlacementReport place_states(Layout& layout, const ModelCost& cost, const Recipe& recipe,
                             const ProgramOptions& options, const Machine& machine) {
  const OffloadConfig& offload = recipe.memory.offload;
  const std::vector<int> groups = trained_groups(layout, cost);
  PlacementReport report;
  for (const int g : groups) report.elements += layout.own_elements(g);
  const Place states = offload.optimizer, parameters = offload.parameters;
  if (states == Place::device && parameters == Place::device) return report;
  require_few_chunks(offload.chunk, layout, groups);
  // A program is built for the limit only where one is asked for.
  MemoryLimit limit;
  if (offload.share == 0)
    limit = memory_limit(recipe, training_program(layout, cost, options), layout, cost, machine);
  const bool as_needed = limit.bytes > 0;
  layout.chunk = offload.chunk;
  place_parameters(layout, parameters);
  ProgramOptions tried = options;
  // Further ones hold nothing more; those of a pipeline are in its schedule.
  if (tried.schedule.empty()) tried.micro_batches = std::min(options.micro_batches, 2);
  // What the states leave is the activations'.
  if (recipe.memory.recompute != Recompute::none) tried.recompute.assign(cost.blocks.size(), true);
  const double wanted =
      static_cast<double>(report.elements) * (offload.share == 0 ? 1 : offload.share);
  const auto enough = [&] {
    if (!as_needed) return static_cast<double>(report.offloaded) >= wanted;
    (void)divide(layout, groups, offload.update, machine);
    return peak_memory(training_program(layout, cost, tried)).total() + limit.fixed <= limit.bytes;
  };
  if (states != Place::device) {
    for (auto g = groups.rbegin(); g != groups.rend() && !enough(); ++g) {
      layout.groups[to_index(*g)].state_place = states;
      report.offloaded += layout.own_elements(*g);
    }
  }
  report.seconds = divide(layout, groups, offload.update, machine);
  for (const int g : groups) {
    if (layout.groups[to_index(g)].state_place != Place::device &&
        layout.groups[to_index(g)].update_method == UpdateMethod::streamed)
      report.streamed += layout.own_elements(g);
  }
  return report;
}

std::string describe(const PlacementReport& report) {
  const auto percent = [](std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  if (report.offloaded == 0) return "no states";
  return fmt::format("{:.0f} % of the states, of which the GPU updates {:.0f} %",
                     percent(report.offloaded, report.elements),
                     percent(report.streamed, report.offloaded));
}

}  // namespace dstrain
