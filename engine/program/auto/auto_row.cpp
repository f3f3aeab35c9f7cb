#include "engine/program/auto/auto_row.h"

#include <algorithm>

#include "engine/base/index.h"
#include "engine/program/cpu_threads.h"
#include "engine/program/recompute_choice.h"

namespace dstrain {
namespace {

/// Adds a rank's part of the means over `ranks`.
void add_rank(AutoRow& row, const Program& program, const Simulation& played, const Layout& layout,
              const ModelCost& cost, const Machine& machine, double ranks) {
  const bool beside = runs_two_at_once(program);
  double blocks = 0, exchanges = 0, others = 0;  // others: of the compute lane
  for (std::size_t a = 0; a < program.actions.size(); ++a) {
    const Action& action = program.actions[a];
    const double length = played.action_end_s[a] - played.action_start_s[a];
    const std::optional<work::Pass> pass = pass_of(action.kind);
    if (!pass) {
      if (action.lane == Lane::compute) others += length;
      continue;
    }
    blocks += beside ? block_seconds(*pass, action.block, layout, cost, machine, beside) : length;
    exchanges += exchange_seconds(*pass, action.block, layout, cost, machine);
    if (*pass == work::Pass::again && action.micro_batch == 0) ++row.recomputed;
  }
  double exposed = played.exposed_comm_s;
  if (beside) {
    // Each lane waits while the other one computes. What is left is when neither does.
    exchanges = std::max(0.0, played.step_s - blocks - others - played.bubble_s);
    exposed = exchanges;
  } else {
    exchanges = std::min(exchanges, exposed);
    blocks -= exchanges;
  }
  row.compute_s += blocks / ranks;
  row.exchange_s += exchanges / ranks;
  row.exposed_s += (exposed - exchanges) / ranks;
  row.bubble_s += played.bubble_s / ranks;
}

}  // namespace

AutoRow simulated_row(const PlanChoice& choice, const Recipe& recipe, const ModelCost& cost,
                      const Strategy& strategy, const Machine& rates) {
  const Machine machine = with_threads(rates, strategy.layout, cost);
  AutoRow row{.choice = choice,
              .batch = strategy.batch,
              .blocks = static_cast<int>(cost.blocks.size()),
              .flops = useful_flops(strategy)};
  const std::vector<Simulation> played = simulate(strategy.line, strategy.layout, cost, machine);
  for (std::size_t r = 0; r < played.size(); ++r) {
    const Program& program = strategy.line[r];
    add_rank(row, program, played[r], strategy.layout, cost, machine,
             static_cast<double>(played.size()));
    const Bytes limit = memory_limit(recipe, program, strategy.layout, cost, machine).bytes;
    row.memory = std::max(row.memory, played[r].ledger.total());
    row.limit = r == 0 ? limit : std::min(row.limit, limit);
  }
  row.step_s = longest_step(played);
  row.rest_s = row.step_s - row.compute_s - row.exchange_s - row.exposed_s - row.bubble_s;
  return row;
}

}  // namespace dstrain
