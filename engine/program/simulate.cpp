#include "engine/program/simulate.h"

#include <algorithm>
#include <bit>

#include "engine/base/index.h"
#include "engine/program/activation_memory.h"
#include "engine/program/cpu_threads.h"
#include "engine/program/event_simulation.h"

namespace dstrain {
namespace {

/// What a rank sends: all of a transfer; of the payload of a ring (n - 1) / n, of an all-reduce
/// twice (Patarasu & Yuan 2009, sec. 4).
Bytes link_bytes(const Comm& comm, const Layout& layout) {
  if (comm.op == CommOp::send || comm.op == CommOp::receive) return comm.bytes;
  const int ranks = layout.extent(comm.axis).ranks;
  const int rounds = comm.op == CommOp::all_reduce ? 2 : 1;
  return rounds * comm.bytes * (ranks - 1) / ranks;
}

/// And what leaves a node on which `local` ranks of the group are: a ring leaves it once, while in
/// an all-to-all each of them sends to all ranks elsewhere.
Bytes network_bytes(const Comm& comm, const Layout& layout, int local) {
  const int ranks = layout.extent(comm.axis).ranks;
  if (comm.op != CommOp::all_to_all) return link_bytes(comm, layout);
  return local * comm.bytes * (ranks - local) / ranks;
}

/// Ranks of the group on one node.
int ranks_on_node(const CommExtent& axis, const Machine& machine) {
  const int groups = std::clamp(axis.stride, 1, machine.ranks_per_node);
  return std::clamp(machine.ranks_per_node / groups, 1, axis.ranks);
}

/// Steps that the last part takes around a ring over several nodes; 0: it is none. NCCL gathers and
/// reduces parts by rings where a node has more than one of the ranks, and sums by trees
/// (src/graph/tuning.cc, NVIDIA/nccl#1594; PAT: #1473).
int ring_hops(const Comm& comm, const Layout& layout, const Machine& machine) {
  if (comm.op != CommOp::all_gather && comm.op != CommOp::reduce_scatter) return 0;
  const CommExtent axis = layout.extent(comm.axis);
  if (axis.ranks * axis.stride <= machine.ranks_per_node) return 0;
  if (machine.lone_ranks_by_trees && ranks_on_node(axis, machine) == 1) return 0;
  return axis.ranks - 1;
}

/// Transfers of a byte that the CPU copies in its memory: read, fetched where it is to go, written.
constexpr double kCopyTransfers = 3;

/// At `rate` bytes a second; nothing where no rate is known.
double seconds(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

void add_comm(const Comm& comm, const Layout& layout, const Machine& machine, Demand& demand) {
  const CommExtent axis = layout.extent(comm.axis);
  const int extent = axis.ranks * axis.stride;
  const bool across_nodes = extent > machine.ranks_per_node;
  const auto bytes = static_cast<double>(link_bytes(comm, layout));
  const bool transfers = comm.op == CommOp::send || comm.op == CommOp::receive;
  // Gloo does the others on a CPU.
  const bool shared = !across_nodes && !transfers && comm.op != CommOp::all_to_all;
  if (shared && machine.shared_bytes_per_s > 0) {
    demand.comm_s += machine.shared_latency_s + bytes / machine.shared_bytes_per_s;
    return;
  }
  // As many groups as one stride has ranks pass through a node's adapters at once.
  const int groups = std::clamp(axis.stride, 1, machine.ranks_per_node);
  const double network = machine.network_bytes_per_s / groups;
  // A transfer goes to one neighbour. Messages of a collective go through trees, one more latency
  // for each doubling of the nodes, or through rings.
  const int nodes = (extent + machine.ranks_per_node - 1) / machine.ranks_per_node;
  const auto depth = static_cast<int>(std::bit_width(static_cast<unsigned>(nodes)));
  const double link_s = seconds(bytes, machine.link_bytes_per_s);
  const int hops = transfers ? (across_nodes ? 1 : 0) : ring_hops(comm, layout, machine);
  const double latency_s = transfers || hops > 0
                               ? machine.collective_latency_s + hops * machine.hop_latency_s
                               : depth * machine.collective_latency_s;
  const int local = ranks_on_node(axis, machine);
  const double network_s =
      across_nodes ? seconds(static_cast<double>(network_bytes(comm, layout, local)), network) : 0;
  demand.comm_s += std::max(link_s, network_s) + latency_s;
  demand.slows_products = !transfers;
  if (comm.op != CommOp::receive) {
    demand.use(Resource::link_out, link_s);
    if (across_nodes) demand.use(Resource::network_out, network_s);
  }
  if (comm.op != CommOp::send) {
    demand.use(Resource::link_in, link_s);
    if (across_nodes) demand.use(Resource::network_in, network_s);
  }
  // Each byte is read on its way out or written on its way in.
  demand.use(Resource::memory, seconds(2 * bytes, machine.memory_bytes_per_s));
}

/// Whether devices of these ranks can copy into each other's memory.
bool reach_each_other(const CommExtent& extent, const Machine& machine) {
  return machine.peer_copies && extent.span <= machine.ranks_per_node;
}

/// Whether these ranks exchange rows by copies.
bool copies_rows(CommAxis axis, const Layout& layout, const Machine& machine) {
  return axis == Axis::tensor && reach_each_other(layout.extent(axis), machine);
}

/// Two slots of it are a part of the device's memory.
constexpr Bytes kLargestPiece = Bytes{128} << 20;

/// For what data ranks exchange. An all-reduce is made in parts, one for each rank, and one in
/// several pieces is too slow on more than two: each of its kernels waits for a product to end, so
/// a layer of Qwen2.5-3B took 4.2 ms where its backward takes 2.5, and 1.8 by NCCL (four H200,
/// recipes/benchmarks/machine.tsv). Layout::splits_sum leaves few of them.
bool goes_by_copies(const Comm& comm, int ranks) {
  if (comm.op == CommOp::all_reduce)
    return comm.bytes % (std::int64_t{comm.width} * ranks) == 0 &&
           (ranks <= 2 || comm.bytes <= kLargestPiece);
  return comm.op == CommOp::all_gather || comm.op == CommOp::reduce_scatter;
}

Comm comm_of(const Exchange& exchange) {
  return {
      .op = exchange.op, .axis = exchange.axis, .width = exchange.width, .bytes = exchange.bytes};
}

/// The rates of products of the width that a run computes in.
Machine for_compute(Machine machine, int compute_bytes) {
  if (compute_bytes == 4 && machine.fp32_flops_per_s > 0) {
    machine.flops_per_s = machine.attention_flops_per_s = machine.fp32_flops_per_s;
    machine.wide_attention_times = 1;  // one library for all
  }
  return machine;
}

class Simulator {
 public:
  Simulator(const Program& program, const Layout& layout, const ModelCost& cost,
            const Machine& machine)
      : program_(program),
        layout_(layout),
        cost_(cost),
        machine_(for_compute(rank_rates(machine, layout, cost), layout.widths.compute)),
        two_at_once_(runs_two_at_once(program)),
        transient_slots_(has_transient_slots(program)),
        reads_parameters_(layout.widths.parameters_are_states()) {}

  [[nodiscard]] Demand demand(const Action& action) const;
  /// Takes the times from its playback.
  Simulation report(SimulatedRun playback);

 private:
  void add_block(const Action& action, Demand& demand) const;
  void add_kernels(const std::vector<KernelCost>& kernels, Demand& demand) const;
  [[nodiscard]] bool copied(const Exchange& exchange, const Action& action) const;
  [[nodiscard]] double hidden_s(const Action& action) const;
  void run_beside(const Action& action, Demand& demand) const;
  [[nodiscard]] double host_s(const Action& action) const;
  [[nodiscard]] double block_bytes(const Action& action) const;
  // Work of an action, but for its collectives.
  void add(const work::Load& load, const Action& action, Demand& demand) const;
  void add(const work::Run& run, const Action& action, Demand& demand) const;
  void add(const work::Move& move, const Action& action, Demand& demand) const;
  void add(const work::Code& code, const Action& action, Demand& demand) const;
  void add(const work::Norm& norm, const Action& action, Demand& demand) const;
  void add(const work::Update& update, const Action& action, Demand& demand) const;
  void add(const work::Exchange&, const Action&, Demand&) const {}
  void add(const work::Zero&, const Action&, Demand&) const {}
  void add_host_update(const work::Update& update, Bytes bytes, Demand& demand) const;
  void on_device(double flops, Bytes bytes, Demand& demand) const;
  void at_file(Bytes read, Bytes written, Demand& demand) const;
  void add_host_link(double bytes, bool in, Demand& demand) const;
  [[nodiscard]] double host_memory_s(double bytes) const;
  [[nodiscard]] const Buffer& buffer_of(const View& view) const {
    return program_.buffers[to_index(view.buffer)];
  }
  [[nodiscard]] Bytes bytes_of(const View& view) const {
    return view.elements * buffer_of(view).width;
  }
  void count(const Action& action);

  const Program& program_;
  const Layout& layout_;
  const ModelCost& cost_;
  const Machine machine_;
  const bool two_at_once_;
  const bool transient_slots_;
  const bool reads_parameters_;
  Simulation result_;
};

/// What the action, which runs a block, does.
work::Pass pass_of(const Action& action) { return std::get<work::Run>(action.work.front()).pass; }

/// Forward, recompute or backward.
void Simulator::add_block(const Action& action, Demand& demand) const {
  const BlockCost& block = cost_.blocks[to_index(action.block)];
  const bool backward = runs_backward(pass_of(action));
  if (!block.forward_kernels.empty())
    return add_kernels(backward ? block.backward_kernels : block.forward_kernels, demand);
  // Backward has the same share of FP8 as forward, and all of attention in its first part. Products
  // and element-wise kernels take turns; each is bound by one of the two.
  const double in_fp8 =
      block.fp8_flops > 0 ? action.flops * block.fp8_flops / block.forward_flops : 0;
  const double passes = backward ? 2 : 1, in_attention = passes * block.attention_flops;
  const double slower = passes * block.wide_attention_flops * (machine_.wide_attention_times - 1);
  const auto seconds_at = [&](double flops, double rate) {
    return flops / (rate > 0 ? rate : machine_.flops_per_s);
  };
  const double product_s = seconds_at(action.flops - in_fp8 - in_attention, machine_.flops_per_s) +
                           seconds_at(in_fp8, machine_.fp8_flops_per_s) +
                           seconds_at(in_attention + slower, machine_.attention_flops_per_s);
  const double memory_s = block_bytes(action) / machine_.memory_bytes_per_s;
  // Backward has two products for each one.
  const double begin_s =
      static_cast<double>(block.layers.size()) * (backward ? 2 : 1) * machine_.layer_s;
  demand.busy_s += product_s + memory_s + begin_s;
  demand.use(Resource::sm, product_s);
  demand.use(Resource::memory, memory_s);
}

/// Whether the action runs that exchange of its block, by copies.
bool Simulator::copied(const Exchange& exchange, const Action& action) const {
  return (exchange.pass == ExchangePass::backward) == runs_backward(pass_of(action)) &&
         copies_rows(exchange.axis, layout_, machine_);
}

/// A block while another micro-batch runs, too: kernels take turns but for a half of their launches
/// (five of six steps of convolutional models on an H200 within 10 %), and exchanges go on beside
/// those of the other one but for a part.
void Simulator::run_beside(const Action& action, Demand& demand) const {
  double shown = 0;
  for (const Exchange& exchange : cost_.blocks[to_index(action.block)].exchanges) {
    if (!copied(exchange, action)) continue;
    const Comm comm = comm_of(exchange);
    shown +=
        (layout_.degrees.tensor - 1) * machine_.copy_beside_batch_s +
        static_cast<double>(link_bytes(comm, layout_)) / machine_.copy_beside_batch_bytes_per_s;
  }
  shown = std::min(shown, demand.comm_s);
  demand.comm_s -= shown;
  demand.busy_s += shown;
  demand.use(Resource::sm, demand.busy_s - demand.launches_s / 2 - demand.seconds_of(Resource::sm));
}

/// Part of the action's exchanges that is hidden beside its products.
double Simulator::hidden_s(const Action& action) const {
  double sum = 0;
  for (const Exchange& exchange : cost_.blocks[to_index(action.block)].exchanges) {
    if (!copied(exchange, action)) continue;
    // A split backward leaves the products for weights, beside which sums travel, to another
    // action.
    if (pass_of(action) == work::Pass::input && exchange.op == CommOp::reduce_scatter) continue;
    const Comm comm = comm_of(exchange);
    Demand alone;
    add_comm(comm, layout_, machine_, alone);
    const double shown =
        machine_.copy_beside_product_s +
        static_cast<double>(link_bytes(comm, layout_)) / machine_.copy_beside_product_bytes_per_s;
    sum +=
        std::max(std::min(alone.comm_s, exchange.beside_flops / machine_.flops_per_s) - shown, 0.0);
  }
  return sum;
}

/// What the host takes to enqueue a block that is in no graph: one that exchanges with tensor
/// ranks, or any beside transient slots.
double Simulator::host_s(const Action& action) const {
  const auto& exchanges = cost_.blocks[to_index(action.block)].exchanges;
  const bool eager = transient_slots_ || (layout_.degrees.tensor > 1 &&
                                          std::ranges::find(exchanges, CommAxis(Axis::tensor),
                                                            &Exchange::axis) != exchanges.end());
  return eager ? (runs_backward(pass_of(action)) ? 2 : 1) * machine_.host_block_s : 0;
}

void Simulator::add_kernels(const std::vector<KernelCost>& kernels, Demand& demand) const {
  double busy_s = 0, sm_s = 0, memory_s = 0;
  for (const KernelCost& kernel : kernels) {
    const double products_rate =
        machine_.conv_flops_per_s > 0 ? machine_.conv_flops_per_s : machine_.flops_per_s;
    const double arithmetic_s = std::max(seconds(kernel.products, products_rate),
                                         seconds(kernel.vector, machine_.vector_flops_per_s));
    const double moving_s = seconds(static_cast<double>(kernel.bytes), machine_.memory_bytes_per_s);
    busy_s += std::max(arithmetic_s, moving_s) + kernel.launches * machine_.launch_s;
    demand.launches_s += kernel.launches * machine_.launch_s;
    sm_s += arithmetic_s;
    memory_s += moving_s;
  }
  demand.busy_s += busy_s;
  demand.use(Resource::sm, sm_s);
  demand.use(Resource::memory, memory_s);
}

/// Bytes that a block moves through device memory: at least its parameters, input, output and what
/// it saves or makes again.
double Simulator::block_bytes(const Action& action) const {
  const BlockCost& block = cost_.blocks[to_index(action.block)];
  Bytes bytes = block.saved_bytes + block.made_again + block.boundary_bytes();
  if (action.block > 0) bytes += cost_.blocks[to_index(action.block) - 1].boundary_bytes();
  const Bytes again = block.again_flops > 0 ? block.made_again : 0;
  const bool backward = runs_backward(pass_of(action));
  if (pass_of(action) == work::Pass::again) bytes -= again;
  if (backward) {
    bytes *= 2;  // values and their gradients
    bytes += again;
    if (program_.keeps_hidden) bytes -= block.hidden_bytes;
  }
  for (const int group : block.groups) {
    const bool trains = backward && layout_.groups[to_index(group)].trainable;
    bytes += layout_.flat[to_index(group)].padded() *
             (layout_.widths.compute + (trains ? 2 * layout_.widths.gradient : 0));
  }
  bytes += backward ? block.backward_traffic : block.forward_traffic;
  return static_cast<double>(bytes);
}

Demand Simulator::demand(const Action& action) const {
  Demand demand;
  for (const Comm& comm : action.comm) add_comm(comm, layout_, machine_, demand);
  for (const Work& work : action.work)
    std::visit([&](const auto& own) { add(own, action, demand); }, work);
  // Sends, and copies of offloaded states, go on beside others.
  const bool alone =
      computes(action.lane) || exchanges_groups(action.lane) || action.kind == ActionKind::load;
  if (machine_.collectives_alone && alone)
    demand.use(Resource::sm, demand.total_s() - demand.seconds_of(Resource::sm));
  return demand;
}

void Simulator::on_device(double flops, Bytes bytes, Demand& demand) const {
  const double product_s = flops / machine_.flops_per_s,
               memory_s = static_cast<double>(bytes) / machine_.memory_bytes_per_s;
  demand.busy_s += product_s + memory_s;
  demand.use(Resource::sm, product_s);
  demand.use(Resource::memory, memory_s);
}

void Simulator::add(const work::Load& load, const Action&, Demand& demand) const {
  // Pixels travel as one byte, their augmented copy is made on the device.
  const Bytes bytes = bytes_of(load.to);
  const double sent = static_cast<double>(bytes) / (1 + layout_.widths.compute);
  demand.busy_s = sent / machine_.host_link_bytes_per_s;
  add_host_link(sent, /*in=*/true, demand);
  on_device(0, bytes, demand);
}

void Simulator::add(const work::Run& run, const Action& action, Demand& demand) const {
  if (run.pass == work::Pass::weight)
    return on_device(action.flops, cost_.blocks[to_index(run.block)].held_bytes, demand);
  add_block(action, demand);
  demand.comm_s -= hidden_s(action);
  if (two_at_once_) {
    run_beside(action, demand);
  } else {
    demand.busy_s = std::max(demand.busy_s, host_s(action) - demand.comm_s);
  }
}

void Simulator::add(const work::Code& code, const Action&, Demand& demand) const {
  on_device(0, bytes_of(code.from) + bytes_of(code.to), demand);
}

void Simulator::add(const work::Norm& norm, const Action&, Demand& demand) const {
  for (const work::Square& square : norm.squares) on_device(0, bytes_of(square.gradient), demand);
}

void Simulator::add(const work::Move& move, const Action& action, Demand& demand) const {
  const Place from = buffer_of(move.from).place, to = buffer_of(move.to).place;
  const bool in = to == Place::device;
  if (in && from == Place::device) {
    // Sums and casts of a reduction are small beside its collectives and not counted.
    if (action.lane != Lane::reduce) on_device(0, bytes_of(move.from) + bytes_of(move.to), demand);
    return;
  }
  const auto bytes = static_cast<double>(bytes_of(move.from));
  add_host_link(bytes, in, demand);
  // What leaves transient slots waits for nothing and takes more than its half of the link: what
  // comes in beside it got 35 of 87 GB/s (two H200).
  if (transient_slots_ && action.lane == Lane::fetch)
    demand.use(Resource::duplex, seconds(bytes / 2, machine_.host_duplex_bytes_per_s));
  // What is not page-locked is copied once more by the CPU.
  const Access host = access_of(in ? from : to);
  if (host == Access::copied)
    demand.use(Resource::host_memory, host_memory_s(kCopyTransfers * bytes));
  if (host == Access::file) {
    demand.use(in ? Resource::file_read : Resource::file_write,
               bytes / (in ? machine_.file_read_bytes_per_s : machine_.file_write_bytes_per_s));
  }
  // Alone it is as fast as the slowest of them.
  for (std::size_t u = 0; u < demand.num_uses; ++u)
    demand.busy_s = std::max(demand.busy_s, demand.uses.at(u).seconds);
}

void Simulator::add(const work::Update& update, const Action& action, Demand& demand) const {
  // Reads the gradient, reads and writes the states, writes the parameters, which are read where
  // they are master weights or a half of them. Then reads the weights once more for their average.
  Bytes bytes =
      bytes_of(update.gradient) + (reads_parameters_ ? 2 : 1) * bytes_of(update.parameters);
  for (const View& state : update.states)
    bytes += (buffer_of(state).role == BufferRole::average ? 3 : 2) * bytes_of(state);
  if (buffer_of(update.gradient).place == Place::device)
    on_device(action.flops, bytes, demand);
  else
    add_host_update(update, bytes, demand);
}

/// By the CPU, which has the gradient.
void Simulator::add_host_update(const work::Update& update, Bytes bytes, Demand& demand) const {
  // What travels by DMA passes the host's memory in actions of its own.
  const auto moved = static_cast<double>(bytes);
  demand.busy_s += moved / machine_.host_update_bytes_per_s;
  const double alone = std::max(machine_.host_memory_bytes_per_s, machine_.host_update_bytes_per_s);
  demand.use(Resource::host_memory, seconds(moved, host_memory_rate(layout_, machine_, alone)));
  Bytes read = 0, written = 0;
  for (const View& state : update.states) {
    if (access_of(buffer_of(state).place) == Access::file) read += bytes_of(state);
  }
  written = read;
  if (access_of(buffer_of(update.parameters).place) == Access::file) {
    written += bytes_of(update.parameters);
    if (reads_parameters_) read += bytes_of(update.parameters);
  }
  at_file(read, written, demand);
}

void Simulator::at_file(Bytes read, Bytes written, Demand& demand) const {
  const double read_s = seconds(static_cast<double>(read), machine_.file_read_bytes_per_s),
               write_s = seconds(static_cast<double>(written), machine_.file_write_bytes_per_s);
  demand.busy_s += read_s + write_s;
  demand.use(Resource::file_read, read_s);
  demand.use(Resource::file_write, write_s);
}

/// Time of copies.
double Simulator::host_memory_s(double bytes) const {
  return seconds(bytes, host_memory_rate(layout_, machine_, machine_.host_memory_bytes_per_s));
}

void Simulator::add_host_link(double bytes, bool in, Demand& demand) const {
  demand.use(in ? Resource::to_device : Resource::to_host,
             seconds(bytes, machine_.host_link_bytes_per_s));
  demand.use(Resource::duplex, seconds(bytes, machine_.host_duplex_bytes_per_s));
  demand.use(Resource::host_memory, host_memory_s(bytes));
}

void Simulator::count(const Action& action) {
  const char* purpose = kind_row(action.kind).purpose;
  for (const Comm& comm : action.comm) {
    const std::string name = comm_name(comm.op);
    auto& uses = result_.collectives;
    auto use = std::find_if(uses.begin(), uses.end(), [&](const CollectiveUse& u) {
      return u.name == name && u.purpose == purpose;
    });
    if (use == uses.end()) use = uses.insert(uses.end(), {.name = name, .purpose = purpose});
    ++use->calls;
    use->payload_bytes += comm.bytes;
    if (comm.op != CommOp::receive) use->sent_bytes += link_bytes(comm, layout_);
    const int hops = ring_hops(comm, layout_, machine_);
    use->rings += hops > 0 ? 1 : 0;
    use->hops += hops;
  }
}

Simulation Simulator::report(SimulatedRun playback) {
  result_.ledger = peak_memory(program_);
  result_.ledger.products = product_memory(program_, cost_, machine_);
  result_.ledger.fixed = fixed_memory(program_, layout_, cost_, machine_);
  for (const BlockCost& block : cost_.blocks) {
    result_.activations_by_block.push_back(saved_bytes(block, program_) + block.boundary_bytes());
  }
  for (const Action& action : program_.actions) count(action);
  result_.step_s = playback.step_s;
  result_.compute_s = playback.compute_s;
  result_.exposed_comm_s = playback.exposed_comm_s;
  result_.bubble_s = playback.bubble_s;
  result_.action_start_s = std::move(playback.start_s);
  result_.action_end_s = std::move(playback.end_s);
  return std::move(result_);
}

/// Demand of a run of a block outside of `program`.
Demand run_alone(work::Pass pass, int block, const Layout& layout, const ModelCost& cost,
                 const Machine& machine, const Program& program = {}) {
  Action action{.block = block,
                .comm = block_collectives(pass, block, program.kind, layout, cost),
                .flops = block_flops(pass, block, layout, cost)};
  action.work = {work::Run{.block = block, .pass = pass}};
  return Simulator(program, layout, cost, machine).demand(action);
}

}  // namespace

double host_memory_rate(const Layout& layout, const Machine& machine, double alone) {
  const int ranks = ranks_of_host(layout.degree(kAllAxes), machine);
  const double total = machine.host_total_bytes_per_s;
  return total > 0 ? std::min(alone, total / ranks) : alone;
}

Bytes fixed_memory(const Program& program, const Layout& layout, const ModelCost& cost,
                   const Machine& machine) {
  Bytes bytes = machine.fixed_overhead + program.input_memory;
  for (const CommChannel& channel : channels(program)) {
    const Bytes copied = reach_each_other(layout.extent(channel.axis), machine)
                             ? copied_bytes(channel, program, layout, cost)
                             : 0;
    bytes += 2 * copied;  // slots of an exchange (PeerMemory)
    if (copied == 0 || !only_copies(channel, program, layout))
      bytes += machine.communicator_overhead;
  }
  return bytes;
}

bool only_copies(const CommChannel& channel, const Program& program, const Layout& layout) {
  const int ranks = layout.extent(channel.axis).ranks;
  return exchanges_groups(channel.lane) &&
         std::ranges::all_of(program.actions, [&](const Action& action) {
           return std::ranges::all_of(action.comm, [&](const Comm& comm) {
             return CommChannel{comm.axis, action.lane} != channel || goes_by_copies(comm, ranks);
           });
         });
}

Bytes copied_bytes(const CommChannel& channel, const Program& program, const Layout& layout,
                   const ModelCost& cost) {
  if (!program.peer_copies) return 0;
  Bytes bytes = 0;
  if (channel.axis == Axis::tensor && computes(channel.lane)) {
    for (const BlockCost& block : cost.blocks) {
      for (const Exchange& exchange : block.exchanges)
        if (exchange.axis == channel.axis) bytes = std::max(bytes, exchange.bytes);
    }
    return bytes;
  }
  if (!exchanges_groups(channel.lane)) return 0;
  const int ranks = layout.extent(channel.axis).ranks;
  for (const Action& action : program.actions) {
    for (const Comm& comm : action.comm) {
      if (CommChannel{comm.axis, action.lane} == channel && goes_by_copies(comm, ranks))
        bytes = std::max(bytes, comm.bytes);
    }
  }
  return std::min(bytes, kLargestPiece);
}

Bytes product_memory(const Program& program, const ModelCost& cost, const Machine& machine) {
  int streams = 0;
  for (const BlockCost& block : cost.blocks) streams = std::max(streams, block.product_streams);
  return (runs_two_at_once(program) ? 2 : 1) * streams * machine.product_workspace;
}

Simulation simulate(const Program& program, const Layout& layout, const ModelCost& cost,
                    const Machine& machine) {
  return std::move(simulate(std::span(&program, 1), layout, cost, machine).front());
}

std::vector<Simulation> simulate(std::span<const Program> line, const Layout& layout,
                                 const ModelCost& cost, const Machine& machine) {
  std::vector<Simulator> ranks;
  for (const Program& program : line) ranks.emplace_back(program, layout, cost, machine);
  std::vector<SimulatedRun> playbacks = simulate_runs(
      line, [&](std::size_t rank, const Action& action) { return ranks[rank].demand(action); },
      machine.collective_compute_share);
  std::vector<Simulation> results;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    results.push_back(ranks[r].report(std::move(playbacks[r])));
  return results;
}

double longest_step(std::span<const Simulation> line) {
  return std::ranges::max_element(line, {}, &Simulation::step_s)->step_s;
}

double block_seconds(work::Pass pass, int block, const Layout& layout, const ModelCost& cost,
                     const Machine& machine, bool two_at_once) {
  if (!two_at_once) return run_alone(pass, block, layout, cost, machine).total_s();
  Program beside;
  beside.actions = {{.lane = Lane::compute_beside, .block = block}};
  return run_alone(pass, block, layout, cost, machine, beside).seconds_of(Resource::sm);
}

double exchange_seconds(work::Pass pass, int block, const Layout& layout, const ModelCost& cost,
                        const Machine& machine) {
  return run_alone(pass, block, layout, cost, machine).comm_s;
}

std::vector<GroupSeconds> group_seconds(const Program& program, const Layout& layout,
                                        const ModelCost& cost, const Machine& machine) {
  const Simulator simulator(program, layout, cost, machine);
  std::vector<GroupSeconds> groups(cost.groups.size());
  for (const Action& action : program.actions) {
    if (action.group < 0) continue;
    GroupSeconds& own = groups[to_index(action.group)];
    double* seconds = action.kind == ActionKind::gather       ? &own.gather
                      : action.kind == ActionKind::reduce     ? &own.reduce
                      : action.kind == ActionKind::gather_sum ? &own.gather_sum
                      : action.kind == ActionKind::update     ? &own.update
                                                              : nullptr;
    if (seconds != nullptr && *seconds == 0) *seconds = simulator.demand(action).total_s();
  }
  return groups;
}

}  // namespace dstrain
