#include "engine/program/simulate.h"

#include <algorithm>
#include <array>
#include <bit>

#include "engine/base/error.h"
#include "engine/base/index.h"

namespace dstrain {
namespace {

/// A ring moves (n - 1) / n of the payload over each link, an all-reduce twice (Patarasu & Yuan
/// 2009, sec. 4).
Bytes sent_bytes(const Comm& comm, const Layout& layout) {
  const int ranks = layout.extent(comm.axis).ranks;
  const int rounds = comm.op == CommOp::all_reduce ? 2 : 1;
  return rounds * comm.bytes * (ranks - 1) / ranks;
}

double seconds(const Comm& comm, const Layout& layout, const Machine& machine) {
  const CommExtent axis = layout.extent(comm.axis);
  const int extent = axis.ranks * axis.stride;
  const bool across_nodes = extent > machine.ranks_per_node;
  const double rate = across_nodes ? machine.network_bytes_per_s : machine.link_bytes_per_s;
  // Small messages go through trees: one more latency for each doubling of the nodes.
  const int nodes = (extent + machine.ranks_per_node - 1) / machine.ranks_per_node;
  const auto depth = static_cast<int>(std::bit_width(static_cast<unsigned>(nodes)));
  return static_cast<double>(sent_bytes(comm, layout)) / rate +
         depth * machine.collective_latency_s;
}

/// After so many runs, each begins and ends as the one before it.
constexpr int kRuns = 3;

class Player {
 public:
  Player(const Program& program, const Layout& layout, const ModelCost& cost,
         const Machine& machine)
      : program_(program), layout_(layout), cost_(cost), machine_(machine) {}

  Simulation play();

 private:
  void play_once(std::array<double, kNumLanes>& free_at);
  /// How long an action keeps its lane, and how much of that is communication.
  struct Duration {
    double busy_s = 0;
    double comm_s = 0;
    [[nodiscard]] double total() const { return busy_s + comm_s; }
  };

  [[nodiscard]] Duration duration(const Action& action) const;
  [[nodiscard]] double block_bytes(const Action& action) const;
  [[nodiscard]] double code_bytes(const Action& action) const;
  [[nodiscard]] Duration update_duration(const Action& action) const;
  [[nodiscard]] Duration copy_duration(const Action& action) const;
  void count(const Action& action);

  const Program& program_;
  const Layout& layout_;
  const ModelCost& cost_;
  const Machine& machine_;
  Simulation result_;
};

/// Bytes that a block moves through device memory at least: its parameters, input, output and what
/// it saves.
double Player::block_bytes(const Action& action) const {
  const BlockCost& block = cost_.blocks[to_index(action.block)];
  Bytes bytes = block.saved_bytes + block.boundary_bytes();
  if (action.block > 0) bytes += cost_.blocks[to_index(action.block) - 1].boundary_bytes();
  if (action.kind == ActionKind::backward) bytes *= 2;  // values and their gradients
  for (const int group : block.groups) {
    const bool trains =
        action.kind == ActionKind::backward && layout_.groups[to_index(group)].trainable;
    bytes += layout_.flat[to_index(group)].padded() *
             (layout_.widths.compute + (trains ? 2 * layout_.widths.gradient : 0));
  }
  return static_cast<double>(bytes);
}

Player::Duration Player::duration(const Action& action) const {
  const double memory = machine_.memory_bytes_per_s;
  const StateWidths& widths = layout_.widths;
  Duration time;
  for (const Comm& comm : action.comm) time.comm_s += seconds(comm, layout_, machine_);
  switch (action.kind) {
    case ActionKind::load: {
      // Pixels travel as one byte, their augmented copy is made on the device.
      const auto bytes = static_cast<double>(program_.buffers[to_index(action.writes[0])].bytes());
      time.busy_s = bytes / (1 + widths.compute) / machine_.host_link_bytes_per_s + bytes / memory;
      break;
    }
    case ActionKind::forward:
    case ActionKind::recompute:
    case ActionKind::backward:
      // Products and element-wise kernels take turns; each is bound by one of the two.
      time.busy_s = action.flops / machine_.flops_per_s + block_bytes(action) / memory;
      break;
    case ActionKind::norm:
      for (int g = 0; g < static_cast<int>(layout_.flat.size()); ++g) {
        if (!layout_.groups[to_index(g)].trainable) continue;
        time.busy_s += static_cast<double>(layout_.own_elements(g) * widths.gradient) / memory;
      }
      break;
    case ActionKind::update:
      return update_duration(action);
    case ActionKind::fetch_parameters:
    case ActionKind::fetch_states:
    case ActionKind::evict_states:
    case ActionKind::fetch_input:
    case ActionKind::evict_input:
      return copy_duration(action);
    case ActionKind::gather:
    case ActionKind::reduce:
      time.busy_s = code_bytes(action) / memory;
      break;
    case ActionKind::release:
    case ActionKind::discard:
    case ActionKind::clear:
    case ActionKind::send_down:
    case ActionKind::send_up:
    case ActionKind::receive_down:
    case ActionKind::receive_up:
      break;
  }
  return time;
}

/// Bytes through device memory that coding and decoding move, and copies to the second shard.
double Player::code_bytes(const Action& action) const {
  const int group = action.group, width = layout_.widths.compute;
  const std::int64_t whole = layout_.flat[to_index(group)].padded(),
                     shard = whole / layout_.shard_degree;
  const auto names = [&](const std::vector<int>& ids, BufferRole role) {
    return program_.find(ids, role) >= 0;
  };
  Bytes bytes = 0;
  if (names(action.writes, BufferRole::second_shard))
    bytes += 2 * width * layout_.second_elements(group);
  if (names(action.writes, BufferRole::coded_parameters)) {
    const Bytes codes = layout_.gather_scratch(group);
    bytes += shard * width + codes / layout_.shard_degree + codes + whole * width;
  }
  if (names(action.writes, BufferRole::coded_gradient))
    bytes += layout_.second_elements(group) * kFloatBytes + layout_.reduce_scratch(group) +
             shard * kFloatBytes;
  return static_cast<double>(bytes);
}

Player::Duration Player::update_duration(const Action& action) const {
  const StateWidths& widths = layout_.widths;
  const GroupLayout& kind = layout_.groups[to_index(action.group)];
  // Reads the gradient, reads and writes master and moments, writes the compute copy.
  const int master = widths.master > 0 ? 2 * widths.master + widths.compute : 2 * widths.compute;
  const int width = widths.gradient + master + 2 * widths.moments;
  const std::int64_t elements = layout_.part(action.group, std::max(action.part, 0)).size();
  const auto bytes = static_cast<double>(elements * width);
  Duration time;
  if (kind.update_method != UpdateMethod::host) {
    time.busy_s = action.flops / machine_.flops_per_s + bytes / machine_.memory_bytes_per_s;
    return time;
  }
  time.busy_s = bytes / machine_.host_update_bytes_per_s;
  const auto at_file = [&](Place place, int read, int written) {
    if (place != Place::file) return;
    const auto count = static_cast<double>(elements);
    time.busy_s += count * read / machine_.file_read_bytes_per_s +
                   count * written / machine_.file_write_bytes_per_s;
  };
  const int states = widths.master + widths.moments;
  at_file(kind.state_place, states, states);
  at_file(kind.parameter_place, widths.master > 0 ? 0 : widths.compute, widths.compute);
  return time;
}

/// Between host and device: what the action reads, or a part of it.
Player::Duration Player::copy_duration(const Action& action) const {
  const StateWidths& widths = layout_.widths;
  const bool in = action.kind == ActionKind::fetch_parameters ||
                  action.kind == ActionKind::fetch_states || action.kind == ActionKind::fetch_input;
  double bytes = 0;
  Place place = Place::pinned;
  if (action.group < 0) {
    const int host = in ? action.reads.front() : action.writes.front();
    bytes = static_cast<double>(cost_.blocks[to_index(action.block)].boundary_bytes());
    place = program_.buffers[to_index(host)].place;
  } else {
    const GroupLayout& kind = layout_.groups[to_index(action.group)];
    if (action.kind == ActionKind::fetch_parameters) {
      bytes = static_cast<double>(layout_.own_elements(action.group) * widths.compute);
      place = kind.parameter_place;
    } else {
      const auto elements = static_cast<double>(layout_.part(action.group, action.part).size());
      const bool streamed = kind.update_method == UpdateMethod::streamed;
      int width = streamed ? state_slot_width(kind, widths) : in ? widths.compute : widths.gradient;
      const bool result_only = streamed && in && widths.master > 0;
      if (result_only && kind.parameter_place != Place::device) width -= widths.compute;
      bytes = elements * width;
      if (streamed) place = kind.state_place;
    }
  }
  // Both directions are in use while states travel.
  const bool both = action.lane == Lane::fetch || action.lane == Lane::evict;
  double rate = both ? machine_.host_duplex_bytes_per_s / 2 : machine_.host_link_bytes_per_s;
  if (place == Place::file)
    rate = std::min(rate, in ? machine_.file_read_bytes_per_s : machine_.file_write_bytes_per_s);
  return {.busy_s = bytes / rate};
}

void Player::count(const Action& action) {
  const char* purpose = action.kind == ActionKind::gather   ? "parameters"
                        : action.kind == ActionKind::reduce ? "gradients"
                        : action.kind == ActionKind::update ? "momentum of matrices"
                        : runs_block(action.kind)           ? "activations inside blocks"
                                                            : "norm and metrics";
  for (const Comm& comm : action.comm) {
    const std::string name = comm_name(comm.op);
    auto& uses = result_.collectives;
    auto use = std::find_if(uses.begin(), uses.end(), [&](const CollectiveUse& u) {
      return u.name == name && u.purpose == purpose;
    });
    if (use == uses.end()) use = uses.insert(uses.end(), {.name = name, .purpose = purpose});
    ++use->calls;
    use->payload_bytes += comm.bytes;
    use->sent_bytes += sent_bytes(comm, layout_);
  }
}

Simulation Player::play() {
  result_.ledger = peak_memory(program_);
  result_.ledger.fixed = fixed_memory(program_, machine_);
  for (const BlockCost& block : cost_.blocks) {
    result_.activations_by_block.push_back(block.saved_bytes + block.boundary_bytes());
  }
  std::array<double, kNumLanes> free_at{};
  double began = 0;
  for (int run = 0; run < kRuns; ++run) {
    began = free_at[static_cast<std::size_t>(Lane::compute)];
    play_once(free_at);
  }
  result_.step_s = free_at[static_cast<std::size_t>(Lane::compute)] - began;
  for (double& time : result_.action_start_s) time -= began;
  for (double& time : result_.action_end_s) time -= began;
  return std::move(result_);
}

/// One run after those played so far; `free_at`: when each lane is free.
void Player::play_once(std::array<double, kNumLanes>& free_at) {
  const std::vector<double> previous = std::move(result_.action_end_s);
  result_.action_start_s.clear();
  result_.action_end_s.clear();
  result_.collectives.clear();
  result_.compute_s = result_.exposed_comm_s = 0;
  for (std::size_t i = 0; i < program_.actions.size(); ++i) {
    const Action& action = program_.actions[i];
    double& lane_free = free_at[static_cast<std::size_t>(action.lane)];
    double ready = lane_free;  // but for communication
    double start = lane_free;
    const auto wait_until = [&](int other, double end) {
      start = std::max(start, end);
      const Lane lane = program_.actions[to_index(other)].lane;
      if (lane != Lane::gather && lane != Lane::reduce) ready = std::max(ready, end);
    };
    for (const int other : action.after) {
      DSTRAIN_CHECK(other >= 0 && to_index(other) < i,
                    "an action waits for one that is listed after it");
      wait_until(other, result_.action_end_s[to_index(other)]);
    }
    if (!previous.empty()) {
      for (const int other : action.after_previous) wait_until(other, previous.at(to_index(other)));
    }
    const Duration time = duration(action);
    if (action.lane == Lane::compute) {
      result_.compute_s += time.busy_s;
      result_.exposed_comm_s += start - ready + time.comm_s;
    }
    count(action);
    lane_free = start + time.total();
    result_.action_start_s.push_back(start);
    result_.action_end_s.push_back(lane_free);
  }
}

}  // namespace

Bytes fixed_memory(const Program& program, const Machine& machine) {
  const auto communicators = static_cast<Bytes>(channels(program).size());
  return machine.fixed_overhead + communicators * machine.communicator_overhead;
}

Simulation simulate(const Program& program, const Layout& layout, const ModelCost& cost,
                    const Machine& machine) {
  return Player(program, layout, cost, machine).play();
}

}  // namespace dstrain
