#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/base/gpu_limits.h"
#include "engine/program/program.h"

namespace dstrain {

/// Rates of the machine the plan is made for. `h200()` and `h100()` hold measured figures, see
/// machine.cpp.
struct Machine {
  std::string name;
  double flops_per_s = 0;              ///< matrix products of 16 bits; on a CPU all
  double fp32_flops_per_s = 0;         ///< and of fp32, attention too; 0: as fast as others
  double fp8_flops_per_s = 0;          ///< and in FP8; 0: as fast as others
  double attention_flops_per_s = 0;    ///< and inside attention; 0: as fast as others
  double wide_attention_times = 1;     ///< how much longer it takes in wide heads
  double vector_flops_per_s = 0;       ///< of kernels that no matrix unit helps; 0: not counted
  double conv_flops_per_s = 0;         ///< products of blocks of images; 0: as fast as others
  double launch_s = 0;                 ///< of a kernel that has nothing to do
  double layer_s = 0;                  ///< of a layer of other blocks; 0: all are in a graph
  double host_block_s = 0;             ///< to enqueue forward of a block outside CUDA graphs
  double memory_bytes_per_s = 0;       ///< device memory, read + write
  double link_bytes_per_s = 0;         ///< bus bandwidth of a collective inside a node
  double network_bytes_per_s = 0;      ///< between nodes, of all adapters of one node
  double host_link_bytes_per_s = 0;    ///< host to device, or back, alone
  double host_duplex_bytes_per_s = 0;  ///< both directions at once, together
  double host_memory_bytes_per_s = 0;  ///< of the host's memory, of one rank alone
  double host_total_bytes_per_s = 0;   ///< and of all ranks of a host together; 0: no limit
  double host_update_bytes_per_s = 0;  ///< the optimizer of one rank on its CPU threads
  double file_read_bytes_per_s = 0, file_write_bytes_per_s = 0;
  double collective_latency_s = 0;
  /// Collectives through memory that ranks of a host share (engine/comm/host_exchange.h): the rate
  /// of what a rank sends, and the time of one with few bytes. 0: none goes there.
  double shared_bytes_per_s = 0, shared_latency_s = 0;
  /// A step of a ring from rank to rank, in the mean over those inside hosts and those between
  /// them, where the ring leaves its host.
  double hop_latency_s = 0;
  bool lone_ranks_by_trees = false;  ///< gathers of groups with one rank in each host (NCCL's PAT)
  std::string network_source = "built in, not measured";  ///< of the rate and the hops of hosts
  /// Part of the processors that a collective takes from products beside it; 0: not measured.
  double collective_compute_share = 0;
  int ranks_per_node = 8;
  /// Tensor ranks of a node exchange rows by copies beside products (engine/comm/peer_copies.h).
  bool peer_copies = false;
  /// What a step still waits for such an exchange beside products, and beside another micro-batch
  /// for each other rank; and the rate at which its bytes slow what runs beside it.
  double copy_beside_product_s = 0, copy_beside_product_bytes_per_s = 0;
  double copy_beside_batch_s = 0, copy_beside_batch_bytes_per_s = 0;
  Bytes device_memory = 0;
  Bytes fixed_overhead = 0;  ///< context and library workspaces: not allocated by dstrain
  Bytes host_base = 0;       ///< host memory of a rank before any state: context, libraries, loader
  bool host_base_measured = false;  ///< else an estimate
  Bytes communicator_overhead = 0;  ///< buffers of each communicator of more than one rank
  Bytes product_workspace = 0;      ///< of products, on each stream that has some
  GpuLimits limits = kCpuLimits;
  /// Ranks share the host's memory: device_memory is an estimate and no limit to plan by.
  bool shares_memory = false;
  /// A rank on a CPU has so many, the rates above are those of one. 0: as many as `launch` gives
  /// it, where its blocks are worth them (cpu_threads.h).
  int threads = 1;
  int cores = 0;  ///< of a host, for the threads of its ranks; 0: each has one
  std::string cores_source = "built in";
  /// A rank does nothing beside a collective.
  bool collectives_alone = false;
};
[[nodiscard]] Machine h200();
[[nodiscard]] Machine h100();
[[nodiscard]] Machine cpu();
/// The one of these whose rates stand for a device without measurements, by the name the driver
/// gives it ("CPU" without a GPU).
[[nodiscard]] Machine built_in_machine(const std::string& device);
[[nodiscard]] std::vector<std::string> built_in_machines();
/// Dense bf16 FLOP/s of a GPU by NVIDIA's datasheet, by the name the driver gives it; 0: not known.
[[nodiscard]] double datasheet_flops(const std::string& gpu);
/// By name; Error{usage} lists the names there are.
[[nodiscard]] Machine find_machine(const std::string& name);

/// Peak bytes of one rank by category. All but `fixed` are allocated by dstrain.
struct Ledger {
  Bytes parameters = 0;
  Bytes gradients = 0;
  Bytes master = 0;
  Bytes moments = 0;
  Bytes average = 0;       ///< of the weights
  Bytes block_states = 0;  ///< untrained
  Bytes gather_buffers = 0;
  Bytes gradient_buffers = 0;
  Bytes state_buffers = 0;  ///< offloaded states while the device updates them
  Bytes input_buffers = 0;  ///< offloaded inputs that are back
  Bytes activations = 0;    ///< peak over the step, saved + boundaries + workspace
  Bytes data = 0;
  Bytes products = 0;  ///< workspaces of products
  Bytes fixed = 0;
  // On the host.
  Bytes pinned = 0;
  Bytes pageable = 0;
  Bytes file = 0;
  Bytes host_base = 0;
  Bytes host_checkpoint = 0;  ///< this rank's copy of its states while they are written
  [[nodiscard]] Bytes allocated() const {
    return parameters + gradients + master + moments + average + block_states + gather_buffers +
           gradient_buffers + state_buffers + input_buffers + activations + data + products;
  }
  [[nodiscard]] Bytes total() const { return allocated() + fixed; }
  [[nodiscard]] Bytes host() const { return pinned + pageable; }  ///< offloaded
  [[nodiscard]] Bytes host_total() const { return host() + host_base + host_checkpoint; }
};

/// Bytes and calls of one kind of collective per step and rank.
struct CollectiveUse {
  std::string name;     ///< "all-gather", "reduce-scatter", "all-reduce"
  std::string purpose;  ///< "parameters", "gradients", "momentum of matrices",
                        ///< "activations inside blocks", "activations between stages",
                        ///< "norm and metrics"
  int calls = 0;
  Bytes payload_bytes = 0;  ///< sum of the full buffers
  Bytes sent_bytes = 0;     ///< what this rank sends (ring)
  int rings = 0;            ///< calls by rings that leave their host
  std::int64_t hops = 0;    ///< steps of these one after the other, all calls together
};

struct Simulation {
  Ledger ledger;
  std::vector<Bytes> activations_by_block;  ///< saved + boundary of each block
  std::vector<CollectiveUse> collectives;
  double step_s = 0;          ///< from the end of one run's compute lane to that of the next
  double compute_s = 0;       ///< busy time of the compute lane
  double exposed_comm_s = 0;  ///< time the compute lane waits for communication
  double bubble_s = 0;        ///< and for other ranks of its pipeline
  /// Since the run before has left the compute lane; negative: beside its end.
  std::vector<double> action_start_s;
  std::vector<double> action_end_s;
};

/// Ranks of a job of `world` on its fullest host.
[[nodiscard]] int ranks_of_host(int world, const Machine& machine);

/// What one rank holds that dstrain does not allocate: Ledger::fixed.
[[nodiscard]] Bytes fixed_memory(const Program& program, const Layout& layout,
                                 const ModelCost& cost, const Machine& machine);

/// The host memory's rate for a rank that could use `alone`, beside the other ranks of its host.
[[nodiscard]] double host_memory_rate(const Layout& layout, const Machine& machine, double alone);

/// Bytes of a whole tensor that ranks of a host exchange by copies on the channel in one piece
/// (engine/comm/peer_copies.h) where Program::peer_copies says so: rows of tensor ranks in their
/// blocks, and what data ranks gather and reduce, but all-reduces of more than two ranks of which a
/// piece is a part only. 0: all of it goes by NCCL.
[[nodiscard]] Bytes copied_bytes(const CommChannel& channel, const Program& program,
                                 const Layout& layout, const ModelCost& cost);
/// Whether the program has nothing for NCCL there where copied_bytes() are exchanged by copies.
[[nodiscard]] bool only_copies(const CommChannel& channel, const Program& program,
                               const Layout& layout);

/// What it allocates beside the buffers of its program: Ledger::products.
[[nodiscard]] Bytes product_memory(const Program& program, const ModelCost& cost,
                                   const Machine& machine);

/// Peak bytes of each category that one rank holds while the program runs; `products` and `fixed`
/// are left 0.
[[nodiscard]] Ledger peak_memory(const Program& program);

/// Plays several runs of the program on `machine` and reports the last: lanes are resources,
/// `after` and `after_previous` are waits, and what runs at once shares the media that it uses.
[[nodiscard]] Simulation simulate(const Program& program, const Layout& layout,
                                  const ModelCost& cost, const Machine& machine);
/// The same for all coordinates of a pipeline beside each other: a send begins with its receive,
/// and a collective of all ranks when the last of them has come to it.
[[nodiscard]] std::vector<Simulation> simulate(std::span<const Program> line, const Layout& layout,
                                               const ModelCost& cost, const Machine& machine);
/// The step of the rank of a line that takes longest.
[[nodiscard]] double longest_step(std::span<const Simulation> line);

/// How long a forward, recompute, backward or a part of one takes alone; with two micro-batches at
/// once (ProgramOptions::two_at_once) what of that keeps the other one from running: kernels but
/// for half of their launches, and the part of exchanges that nothing hides.
[[nodiscard]] double block_seconds(work::Pass pass, int block, const Layout& layout,
                                   const ModelCost& cost, const Machine& machine,
                                   bool two_at_once = false);
/// Time of the collectives inside the block, each alone.
[[nodiscard]] double exchange_seconds(work::Pass pass, int block, const Layout& layout,
                                      const ModelCost& cost, const Machine& machine);
/// How long a group's first gather, reduction, gather of its sum and update take alone; 0: the
/// program has none.
struct GroupSeconds {
  double gather = 0, reduce = 0, gather_sum = 0, update = 0;
};
/// By group.
[[nodiscard]] std::vector<GroupSeconds> group_seconds(const Program& program, const Layout& layout,
                                                      const ModelCost& cost,
                                                      const Machine& machine);

}  // namespace dstrain
