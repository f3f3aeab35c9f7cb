#include "engine/program/auto/estimate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "engine/base/index.h"
#include "engine/program/block_visits.h"
#include "engine/program/cpu_threads.h"
#include "engine/program/recompute_choice.h"
#include "engine/program/schedules/visit_times.h"
#include "engine/program/stage_plan.h"

namespace dstrain {
namespace {

double sum(const std::vector<GroupSeconds>& groups, double GroupSeconds::*seconds) {
  return std::accumulate(groups.begin(), groups.end(), 0.0,
                         [&](double all, const GroupSeconds& own) { return all + own.*seconds; });
}

/// More micro-batches than this for each pipeline rank go on as those before.
constexpr int kPlayedPerRank = 4;

/// A pipeline's visits, with the micro-batches that are played.
struct Played {
  Stages stages;
  LineCost line;
  VisitTimes times;
  double step_s = 0;  ///< of all micro-batches
};

class Estimator {
 public:
  Estimator(const PlanChoice& choice, const Recipe& recipe, const ModelCost& cost,
            const LayoutTable& table, int micro_batches, const Machine& machine)
      : choice_(choice),
        recipe_(recipe),
        cost_(cost),
        table_(table),
        machine_(machine),
        layout_(table.layout),
        micro_batches_(micro_batches),
        costs_(choice.degrees.pipeline == 1
                   ? joined_costs(layout_, cost, machine, choice.concurrent == 2)
                   : stage_costs(layout_, cost, {}, machine)) {}

  Estimate make();

 private:
  [[nodiscard]] Played play(Estimate& estimate);
  [[nodiscard]] std::vector<int> blocks_of(int rank) const;
  [[nodiscard]] double after_visits(int rank, const Program& program) const;
  [[nodiscard]] double gather_wait(const std::vector<int>& blocks) const;
  [[nodiscard]] double reduce_tail(const std::vector<int>& blocks, bool sums) const;
  [[nodiscard]] double work(const std::vector<int>& blocks) const;
  [[nodiscard]] std::vector<int> groups_of(const std::vector<int>& blocks) const;
  [[nodiscard]] bool on_two_stages(int group) const {
    return layout_.groups[to_index(group)].stages.size() > 1;
  }
  [[nodiscard]] Program one_visit(int rank) const;
  double fit_memory(int rank, const Program& program, const Played& played,
                    Estimate& estimate) const;

  const PlanChoice& choice_;
  const Recipe& recipe_;
  const ModelCost& cost_;
  const LayoutTable& table_;
  const Machine& machine_;
  Layout layout_;
  int micro_batches_;
  StageCosts costs_;
};

Played Estimator::play(Estimate& estimate) {
  Played played;
  int micro_batches = micro_batches_;
  if (choice_.degrees.pipeline == 1) {
    micro_batches = 1;
    played.stages = even_stages(static_cast<int>(cost_.blocks.size()), 1);
    played.line = line_cost(played.stages, costs_);
    played.times = time_visits(one_f_one_b(played.stages, 1), played.stages, played.line);
  } else {
    micro_batches = std::min(micro_batches, kPlayedPerRank * choice_.degrees.pipeline);
    const StagePlan plan = plan_stages(recipe_, layout_, cost_, {.micro_batches = micro_batches},
                                       machine_, /*moves=*/0);
    played.stages = plan.cut.stages;
    played.line = line_cost(played.stages, costs_);
    played.times = time_visits(plan.cut.visits, played.stages, played.line);
    set_stages(layout_, cost_, played.stages);
    estimate.schedule = plan.schedule;
    estimate.chunks = played.stages.chunks() / choice_.degrees.pipeline;
  }
  double busiest = 0;
  for (int r = 0; r < choice_.degrees.pipeline; ++r)
    busiest = std::max(busiest, work(blocks_of(r)));
  played.step_s = played.times.makespan + (micro_batches_ - micro_batches) * busiest;
  return played;
}

std::vector<int> Estimator::blocks_of(int rank) const {
  std::vector<int> blocks;
  for (int b = 0; b < static_cast<int>(cost_.blocks.size()); ++b) {
    if (layout_.stages.rank_of(b) == rank) blocks.push_back(b);
  }
  return blocks;
}

/// Forward and backward of a micro-batch.
double Estimator::work(const std::vector<int>& blocks) const {
  double seconds = 0;
  for (const int b : blocks) seconds += costs_.blocks[to_index(b)].all();
  return seconds;
}

std::vector<int> Estimator::groups_of(const std::vector<int>& blocks) const {
  std::set<int> groups;
  for (const int b : blocks)
    groups.insert(cost_.blocks[to_index(b)].groups.begin(), cost_.blocks[to_index(b)].groups.end());
  return {groups.begin(), groups.end()};
}

/// The first forwards' wait for parameters that come one group after the other.
double Estimator::gather_wait(const std::vector<int>& blocks) const {
  double arrived = 0, end = 0, busy = 0;
  std::set<int> seen;
  for (const int b : blocks) {
    for (const int g : cost_.blocks[to_index(b)].groups) {
      if (seen.insert(g).second) arrived += table_.groups[to_index(g)].gather;
    }
    busy += costs_.blocks[to_index(b)].forward;
    end = std::max(end, arrived) + costs_.blocks[to_index(b)].forward;
  }
  return end - busy;
}

/// Reductions that go on after the last backward; with `sums` the gathers of their parts, too.
double Estimator::reduce_tail(const std::vector<int>& blocks, bool sums) const {
  double reduced = 0, end = 0;
  std::set<int> seen;
  for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) {
    end += costs_.blocks[to_index(*b)].input + costs_.blocks[to_index(*b)].weight;
    for (const int g : cost_.blocks[to_index(*b)].groups) {
      if (seen.insert(g).second && !on_two_stages(g))
        reduced = std::max(reduced, end) + table_.groups[to_index(g)].reduce +
                  (sums ? table_.groups[to_index(g)].gather_sum : 0);
    }
  }
  return std::max(0.0, reduced - end);
}

/// What a rank's step takes beside its visits.
double Estimator::after_visits(int rank, const Program& program) const {
  const std::vector<int> blocks = blocks_of(rank);
  const std::vector<GroupSeconds> own = group_seconds(program, layout_, cost_, machine_);
  double gathers = 0, reductions = 0, updates = 0, seconds = 0;
  for (const int g : groups_of(blocks)) {
    gathers += table_.groups[to_index(g)].gather;
    reductions += table_.groups[to_index(g)].reduce;
    updates += table_.groups[to_index(g)].update;
    // Reduced once, after all others.
    if (on_two_stages(g)) seconds += own[to_index(g)].reduce;
  }
  double each = 0;  // of a micro-batch, beside its visits
  if (choice_.zero_stage >= 2) each += reductions;
  if (choice_.zero_stage == 3) each += 2 * gathers;
  if (machine_.collectives_alone) {
    seconds += micro_batches_ * each + updates;
    if (choice_.zero_stage < 3) seconds += gathers;
    if (choice_.zero_stage < 2) seconds += reductions;
  } else {
    // Norm follows the reductions; updates go on beside the last gathers of sums.
    const double tail = reduce_tail(blocks, /*sums=*/false);
    seconds += gather_wait(blocks) + tail +
               std::max(updates, reduce_tail(blocks, /*sums=*/true) - tail) +
               (micro_batches_ - 1) * std::max(0.0, each - work(blocks));
  }
  // Offloaded states go beside the next forward, and some come beside the last backward.
  double forward = 0;
  for (const int b : blocks) forward += costs_.blocks[to_index(b)].forward;
  return seconds + std::max(0.0, table_.host_s - (forward + work(blocks)) / 2);
}

/// A step of as few micro-batches as there can be.
Program Estimator::one_visit(int rank) const {
  ProgramOptions one = {.micro_batches = choice_.concurrent,
                        .two_at_once = choice_.concurrent == 2,
                        .peer_copies = recipe_.parallel.peer_copies};
  if (choice_.degrees.pipeline > 1)
    one.schedule = zero_bubble(layout_.stages, 1, equal_costs(layout_.stages, /*split=*/false));
  return training_program(layout_, cost_, one, rank);
}

/// Memory of a rank; blocks run forward again, those first that free most per second, until it
/// fits. The seconds of that.
double Estimator::fit_memory(int rank, const Program& program, const Played& played,
                             Estimate& estimate) const {
  const MemoryLimit limit = memory_limit(recipe_, program, layout_, cost_, machine_);
  const Ledger ledger = peak_memory(program);
  const std::vector<int> blocks = blocks_of(rank);
  Bytes workspace = 0;
  double stage_bytes = 0;
  for (const int b : blocks) {
    workspace =
        std::max(workspace, workspace_of(work::Pass::backward, cost_.blocks[to_index(b)], true));
    stage_bytes += costs_.blocks[to_index(b)].held;
  }
  const double held = choice_.concurrent * played.times.held[to_index(rank)];
  const double under_way = stage_bytes > 0 ? std::max(1.0, held / stage_bytes) : 1;
  const Bytes batches =
      cost_.batch_bytes * std::min(micro_batches_ - 1, 2 * choice_.degrees.pipeline - 1);
  double bytes = static_cast<double>(limit.fixed + ledger.allocated() - ledger.activations +
                                     workspace + (choice_.degrees.pipeline > 1 ? batches : 0)) +
                 held;
  std::vector<int> again;
  for (const int b : blocks) {
    const bool head = b + 1 == static_cast<int>(cost_.blocks.size());
    if (!head && cost_.blocks[to_index(b)].saved_bytes > 0) again.push_back(b);
  }
  std::ranges::stable_sort(again, {}, [&](int b) {
    return cost_.blocks[to_index(b)].forward_flops /
           static_cast<double>(cost_.blocks[to_index(b)].saved_bytes);
  });
  double seconds = 0;
  for (const int b : again) {
    if (limit.bytes == 0 || bytes <= static_cast<double>(limit.bytes)) break;
    bytes -= under_way * static_cast<double>(cost_.blocks[to_index(b)].saved_bytes);
    // What is computed again is held once.
    if (b == again.front()) bytes += static_cast<double>(cost_.blocks[to_index(b)].saved_bytes);
    seconds += micro_batches_ * costs_.blocks[to_index(b)].forward;
  }
  estimate.limit = limit.bytes;
  estimate.memory = std::max(estimate.memory, static_cast<Bytes>(std::llround(bytes)));
  return seconds;
}

Estimate Estimator::make() {
  Estimate estimate;
  const Played played = play(estimate);
  double beside = 0;
  for (int r = 0; r < choice_.degrees.pipeline; ++r) {
    const Program program = one_visit(r);
    beside = std::max(beside, after_visits(r, program) + fit_memory(r, program, played, estimate));
  }
  estimate.step_s = played.step_s + beside;
  return estimate;
}

}  // namespace

Bound lower_bound(const PlanChoice& choice, const BlockTable& blocks, const LayoutTable& layout,
                  int micro_batches, const Machine& machine) {
  const auto pipeline = static_cast<std::size_t>(choice.degrees.pipeline);
  const double samples = static_cast<double>(micro_batches) * choice.micro;
  const double skew = choice.micro * blocks.min_forward_s[pipeline - 1];
  const double work =
      samples * std::max(blocks.sample_s / choice.degrees.pipeline, blocks.longest_block_s) + skew;
  const double times = choice.zero_stage >= 2 ? micro_batches : 1;
  const double moved = (times * sum(layout.groups, &GroupSeconds::reduce) +
                        sum(layout.groups, &GroupSeconds::gather)) /
                       choice.degrees.pipeline;
  const double updates = sum(layout.groups, &GroupSeconds::update) / choice.degrees.pipeline,
               sums = sum(layout.groups, &GroupSeconds::gather_sum) / choice.degrees.pipeline;
  const double serial = samples * blocks.sample_s / choice.degrees.pipeline + moved + updates;
  return {
      .step_s = std::max(
          {std::max(work, moved) + updates, moved + sums, machine.collectives_alone ? serial : 0}),
      .memory = machine.fixed_overhead + layout.states + choice.micro * blocks.largest_activation};
}

Estimate estimate_step(const PlanChoice& choice, const Recipe& recipe, const ModelCost& cost,
                       const LayoutTable& table, int micro_batches, const Machine& machine) {
  const Machine rates = with_threads(machine, table.layout, cost);
  return Estimator(choice, recipe, cost, table, micro_batches, rates).make();
}

}  // namespace dstrain
