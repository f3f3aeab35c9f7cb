#include "engine/program/stage_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/words.h"
#include "engine/program/block_visits.h"
#include "engine/program/recompute_choice.h"
#include "engine/program/schedules/visit_times.h"

namespace dstrain {
namespace {

using Name = ScheduleName;

/// Seconds and bytes of a block.
ChunkCost cost_of_block(int block, const Layout& layout, const ModelCost& cost,
                        const ProgramOptions& options, const Machine& machine) {
  const BlockCost& own = cost.blocks[to_index(block)];
  const auto seconds = [&](work::Pass pass) {
    return block_seconds(pass, block, layout, cost, machine, options.two_at_once);
  };
  ChunkCost result{
      .forward = seconds(work::Pass::forward), .input = 0, .weight = 0, .held = 0, .later = 0};
  if (block < first_trained_block(cost)) return result;
  const bool head = block + 1 == static_cast<int>(cost.blocks.size());
  const bool again =
      !head && to_index(block) < options.recompute.size() && options.recompute[to_index(block)];
  const bool splits = splits_backward(own, layout);
  result.input =
      seconds(splits ? work::Pass::input : work::Pass::backward) + (again ? result.forward : 0);
  if (splits) result.weight = seconds(work::Pass::weight);
  if (splits) result.later = static_cast<double>(own.held_bytes);
  result.held = static_cast<double>(own.boundary_bytes() + (again ? 0 : own.saved_bytes));
  result.held = std::max(result.held, result.later);
  return result;
}

/// Where no part of a backward comes later.
StageCosts joined(StageCosts costs) {
  for (ChunkCost& block : costs.blocks) {
    block.input += std::exchange(block.weight, 0);
    block.later = 0;
  }
  return costs;
}

/// The activations of all blocks of one micro-batch, on the average rank.
double stage_bytes(const StageCosts& costs, int ranks) {
  double bytes = 0;
  for (const ChunkCost& block : costs.blocks) bytes += block.held;
  return bytes / ranks;
}

/// What the fullest rank has left for activations beside its states, the stages as they are in
/// `layout`; nothing where no limit of the memory is known.
std::optional<double> free_bytes(const Recipe& recipe, const Layout& layout, const ModelCost& cost,
                                 const ProgramOptions& options, const Machine& machine) {
  std::optional<double> min;
  for (int c = 0; c < layout.pipeline_degree(); ++c) {
    const ProgramOptions one = {.micro_batches = 1, .peer_copies = recipe.parallel.peer_copies};
    const Program program = training_program(layout, cost, one, c);
    const MemoryLimit limit = memory_limit(recipe, program, layout, cost, machine);
    if (limit.bytes == 0) return {};
    const Ledger ledger = peak_memory(program);
    Bytes workspace = 0;
    for (const BlockCost& block : cost.blocks)
      workspace = std::max(workspace, workspace_of(work::Pass::backward, block, true));
    const auto left = static_cast<double>(limit.bytes - limit.fixed - ledger.allocated() +
                                          ledger.activations - workspace);
    // As many batches as micro-batches are under way, and two are counted above.
    min = std::min(min.value_or(left), left);
  }
  return *min - static_cast<double>(cost.batch_bytes) *
                    std::min(options.micro_batches, 2 * layout.pipeline_degree());
}

class StagePlanner {
 public:
  StagePlanner(const Recipe& recipe, const Layout& layout, const ModelCost& cost,
               const ProgramOptions& options, const Machine& machine, int moves);
  StagePlan plan();

 private:
  [[nodiscard]] double limit(const Recipe& recipe, const Layout& layout, const ModelCost& cost,
                             const ProgramOptions& options, const Machine& machine) const;
  [[nodiscard]] bool fits(const CutSchedule& cut, const StageCosts& costs) const;
  void offer(ScheduleName name, int per_rank, ChunkOrder order, bool must_fit);
  void check_chunks(int per_rank) const;
  [[nodiscard]] std::vector<int> cut_by_hand(const std::vector<int>& rank) const;

  const StagesConfig& config_;
  const int ranks_, blocks_, micro_batches_, moves_;
  StageCosts costs_;
  std::optional<StagePlan> best_;
};

StagePlanner::StagePlanner(const Recipe& recipe, const Layout& layout, const ModelCost& cost,
                           const ProgramOptions& options, const Machine& machine, int moves)
    : config_(recipe.parallel.stages),
      ranks_(layout.pipeline_degree()),
      blocks_(static_cast<int>(cost.blocks.size())),
      micro_batches_(options.micro_batches),
      moves_(moves),
      costs_(stage_costs(layout, cost, options, machine)) {
  costs_.limits.assign(to_index(ranks_), limit(recipe, layout, cost, options, machine));
}

/// Never less than 1F1B holds: where memory is short, blocks are recomputed.
double StagePlanner::limit(const Recipe& recipe, const Layout& layout, const ModelCost& cost,
                           const ProgramOptions& options, const Machine& machine) const {
  const double stage = stage_bytes(costs_, ranks_);
  if (config_.in_flight > 0) return config_.in_flight * stage;
  const double max = 2 * ranks_ * stage;
  const auto left = free_bytes(recipe, layout, cost, options, machine);
  return left ? std::clamp(*left, ranks_ * stage, max) : max;
}

bool StagePlanner::fits(const CutSchedule& cut, const StageCosts& costs) const {
  const VisitTimes times = time_visits(cut.visits, cut.stages, line_cost(cut.stages, costs));
  for (std::size_t r = 0; r < times.held.size(); ++r) {
    if (times.held[r] > costs.limits[r]) return false;
  }
  return true;
}

void StagePlanner::check_chunks(int per_rank) const {
  const int chunks = ranks_ * per_rank;
  if (chunks <= blocks_) return;
  const bool several =
      config_.schedule == Name::interleaved || config_.schedule == Name::dual_pipe_v;
  const int min_per_rank = several ? 2 : 1, max_per_rank = blocks_ / ranks_;
  throw Error(
      ErrorKind::usage,
      fmt::format("parallel.stages: {} chunk{} on each of {} ranks, and the model has {} blocks "
                  "(embedding and head are two of them)",
                  per_rank, plural(per_rank), ranks_, blocks_),
      max_per_rank >= min_per_rank
          ? fmt::format("use parallel.stages.chunks: {}, or less of parallel.pipeline",
                        max_per_rank)
          : fmt::format("use at most parallel.pipeline: {}{}", blocks_ / min_per_rank,
                        several ? ", or parallel.stages.schedule: 1f1b" : ""));
}

/// The embedding is in the first chunk, the head in the last one.
std::vector<int> StagePlanner::cut_by_hand(const std::vector<int>& rank) const {
  const std::vector<int>& layers = config_.layers;
  const int sum = std::accumulate(layers.begin(), layers.end(), 0);
  const std::string hint =
      fmt::format("list {} numbers that add up to {}", rank.size(), blocks_ - 2);
  if (sum != blocks_ - 2 || layers.size() != rank.size()) {
    throw Error(ErrorKind::usage,
                fmt::format("parallel.stages.layers: {} layers in {} chunks, and the model has {} "
                            "in {}",
                            sum, layers.size(), blocks_ - 2, rank.size()),
                hint);
  }
  std::vector<int> first = {0};
  int end = 1;
  for (std::size_t c = 0; c + 1 < layers.size(); ++c) first.push_back(end += layers[c]);
  for (std::size_t c = 0; c < first.size(); ++c) {
    if ((c + 1 < first.size() ? first[c + 1] : blocks_) > first[c]) continue;
    throw Error(ErrorKind::usage,
                fmt::format("parallel.stages.layers: chunk {} has no layer, embedding or head", c),
                "give each chunk at least one");
  }
  return first;
}

/// Takes the schedule if it ends first.
void StagePlanner::offer(ScheduleName name, int per_rank, ChunkOrder order, bool must_fit) {
  const StageCosts& costs = costs_;
  const StageCosts used =
      name == Name::zero_bubble || name == Name::dual_pipe_v ? costs : joined(costs);
  const std::vector<int> rank = chunk_ranks(ranks_, per_rank, order);
  CutSchedule cut = config_.layers.empty()
                        ? search_cut(name, rank, micro_batches_, used, moves_)
                        : schedule_cut(name, {.first_block = cut_by_hand(rank), .rank = rank},
                                       micro_batches_, used);
  if (must_fit && !fits(cut, used)) return;
  if (!best_ || cut.makespan < best_->cut.makespan) best_ = {name, std::move(cut)};
}

StagePlan StagePlanner::plan() {
  const bool several = config_.schedule != Name::gpipe && config_.schedule != Name::one_f_one_b;
  int per_rank = config_.chunks > 0 ? config_.chunks : several ? 2 : 1;
  if (!config_.layers.empty()) per_rank = static_cast<int>(config_.layers.size()) / ranks_;
  const bool searched =
      config_.schedule == Name::automatic || config_.schedule == Name::zero_bubble;
  const bool open = searched && config_.chunks == 0 && config_.layers.empty();
  if (open && ranks_ * per_rank > blocks_) per_rank = 1;
  check_chunks(per_rank);
  if (config_.schedule == Name::dual_pipe_v && micro_batches_ < 2 * ranks_) {
    throw Error(
        ErrorKind::usage,
        fmt::format("parallel.stages.schedule: dual_pipe_v on {} ranks with {} micro-batches "
                    "each",
                    ranks_, micro_batches_),
        fmt::format("use a batch.global and batch.micro that make at least {}, or "
                    "zero_bubble",
                    2 * ranks_));
  }
  const bool all = config_.schedule == Name::automatic;
  if (!searched || (all && per_rank == 1) || (all && open)) {
    const ScheduleName name = all ? Name::one_f_one_b : config_.schedule;
    offer(name, all ? 1 : per_rank, name == Name::dual_pipe_v ? ChunkOrder::v : ChunkOrder::loop,
          false);
  }
  if (!searched) return std::move(*best_);
  if (all && per_rank > 1) offer(Name::interleaved, per_rank, ChunkOrder::loop, true);
  if (all && open && per_rank > 1) offer(Name::zero_bubble, 1, ChunkOrder::loop, true);
  offer(Name::zero_bubble, per_rank, ChunkOrder::loop, best_.has_value());
  if (per_rank > 1) offer(Name::zero_bubble, per_rank, ChunkOrder::v, true);
  return std::move(*best_);
}

}  // namespace

StageCosts stage_costs(const Layout& layout, const ModelCost& cost, const ProgramOptions& options,
                       const Machine& machine) {
  StageCosts costs;
  Bytes boundary = 0;
  const int blocks = static_cast<int>(cost.blocks.size());
  for (int b = 0; b < blocks; ++b) {
    costs.blocks.push_back(cost_of_block(b, layout, cost, options, machine));
    if (b + 1 < blocks) boundary = std::max(boundary, cost.blocks[to_index(b)].boundary_bytes());
  }
  costs.transfer =
      machine.collective_latency_s + static_cast<double>(boundary) / machine.link_bytes_per_s;
  return costs;
}

StagePlan plan_stages(const Recipe& recipe, const Layout& layout, const ModelCost& cost,
                      const ProgramOptions& options, const Machine& machine, int moves) {
  return StagePlanner(recipe, layout, cost, options, machine, moves).plan();
}

}  // namespace dstrain
