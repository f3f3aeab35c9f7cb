#include "engine/program/auto/cost_tables.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/cpu_threads.h"
#include "engine/program/stage_plan.h"
#include "engine/program/strategy.h"
#include "engine/recipe/families.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

LayoutTable layout_of(const Recipe& recipe, const ModelCost& cost, int ranks,
                      const Machine& machine) {
  const Mesh mesh(ranks, mesh_degrees(recipe.parallel, ranks));
  Layout layout = zero_layout(recipe.parallel.zero.stage, mesh, cost, state_widths(recipe),
                              matrix_rule(recipe));
  set_wires(layout, cost, wires_of(recipe, layout.degrees.shard));
  layout.peer_ranks = peer_ranks(recipe, machine);
  ProgramOptions options = {.micro_batches = 1};
  const double host_s = place_states(layout, cost, recipe, options, machine).seconds;
  return {.layout = std::move(layout), .host_s = host_s / recipe.parallel.pipeline};
}

}  // namespace

StageCosts joined_costs(const Layout& layout, const ModelCost& cost, const Machine& machine,
                        bool two_at_once) {
  StageCosts costs = stage_costs(layout, cost, {.two_at_once = two_at_once}, machine);
  for (int b = 0; b < static_cast<int>(costs.blocks.size()); ++b) {
    ChunkCost& block = costs.blocks[to_index(b)];
    if (block.weight == 0) continue;
    block.input = block_seconds(work::Pass::backward, b, layout, cost, machine, two_at_once);
    block.weight = block.later = 0;
  }
  return costs;
}

CostTables::CostTables(const PlanSource& source, const Machine& machine, int ranks)
    : source_(source), machine_(machine), ranks_(ranks) {
  const ModelFamily* family = family_of(source.recipe({}).model.name);
  small_blocks_ = family != nullptr && family->by_name;
}

std::string reason_of(const Error& error) {
  if (const auto* rules = dynamic_cast<const RecipeError*>(&error)) {
    const Diagnostic& first = rules->diagnostics().front();
    return first.path + ": " + first.message;
  }
  return error.what();
}

const ModelCost& CostTables::cost(const PlanChoice& choice, const Recipe& recipe) {
  const std::tuple key(degrees(choice), choice.micro);
  auto found = costs_.find(key);
  if (found == costs_.end()) found = costs_.emplace(key, source_.cost(recipe)).first;
  return found->second;
}

BlockTable CostTables::make_blocks(const PlanChoice& choice) {
  const Recipe own = recipe(choice);
  BlockTable table{.cost = cost(choice, own), .micro = choice.micro, .min_forward_s = {0}};
  const Layout layout = layout_of(own, table.cost, ranks_, machine_).layout;
  const StageCosts costs = joined_costs(
      layout, table.cost, with_threads(machine_, layout, table.cost), choice.concurrent == 2);
  std::vector<double> forwards;
  for (const ChunkCost& block : costs.blocks) {
    const double sample_s = block.all() / choice.micro;
    table.sample_s += sample_s;
    table.longest_block_s = std::max(table.longest_block_s, sample_s);
    forwards.push_back(block.forward / choice.micro);
  }
  std::ranges::sort(forwards);
  for (const double forward_s : forwards)
    table.min_forward_s.push_back(table.min_forward_s.back() + forward_s);
  for (const BlockCost& block : table.cost.blocks)
    table.largest_activation = std::max(table.largest_activation, block.saved_bytes / choice.micro);
  return table;
}

const BlockTable* CostTables::blocks(const PlanChoice& choice) {
  const BlocksKey key = lengths(choice);
  auto found = blocks_.find(key);
  if (found == blocks_.end()) {
    std::optional<BlockTable> table;
    try {
      table = make_blocks(choice);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      refusals_[key] = reason_of(error);
    }
    found = blocks_.emplace(key, std::move(table)).first;
  }
  return found->second ? &*found->second : nullptr;
}

LayoutTable CostTables::make_layout(const PlanChoice& choice, const ModelCost& cost) const {
  LayoutTable table = layout_of(recipe(choice), cost, ranks_, machine_);
  table.groups.resize(cost.groups.size());
  const Machine machine = with_threads(machine_, table.layout, cost);
  for (int rank = 0; rank < choice.degrees.pipeline; ++rank) {
    const Program program = training_program(table.layout, cost, {}, rank);
    const std::vector<GroupSeconds> own = group_seconds(program, table.layout, cost, machine);
    for (std::size_t g = 0; g < own.size(); ++g)
      if (table.layout.holds(rank, static_cast<int>(g))) table.groups[g] = own[g];
    const Ledger ledger = peak_memory(program);
    table.states +=
        ledger.parameters + ledger.gradients + ledger.master + ledger.moments + ledger.average;
  }
  table.states /= choice.degrees.pipeline;
  for (std::size_t g = 0; g < table.groups.size(); ++g)
    if (table.layout.offloaded(static_cast<int>(g))) table.groups[g].update = 0;  // in host_s
  return table;
}

const LayoutTable* CostTables::layout(const PlanChoice& choice) {
  const SharesKey key = shares(choice);
  auto found = layouts_.find(key);
  if (found == layouts_.end()) {
    std::optional<LayoutTable> table;
    try {
      table = make_layout(choice, blocks(choice)->cost);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      layout_refusals_[key] = reason_of(error);
    }
    found = layouts_.emplace(key, std::move(table)).first;
  }
  return found->second ? &*found->second : nullptr;
}

}  // namespace dstrain
