#include "engine/bench/parallel_ranks.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/base/error.h"
#include "engine/bench/parallel_plan.h"
#include "engine/mesh/mesh.h"

namespace dstrain::bench {
namespace {

/// That the run's plan says; nothing where it says none.
std::optional<Mesh> mesh_of(const report::RunData& run) {
  if (!run.plan.is_object() || !run.plan.contains("mesh")) return std::nullopt;
  Degrees degrees;
  for (const Axis axis : kAxes) {
    const double value = report::number(run.plan["mesh"], axis_name(axis));
    if (value >= 1 && value <= 1e6) degrees[axis] = static_cast<int>(value);
  }
  const double world = report::number(run.plan, "world_size");
  if (!(world >= 1 && world <= 1e6)) return std::nullopt;
  try {
    return Mesh(static_cast<int>(world), degrees);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Waits of one step. Those of norm are what is left of the communication that was exposed.
ExposedTime exposed_in(const report::TimingRow& row) {
  ExposedTime time{.gather = row.wait_gather_s,
                   .reduce = row.wait_reduce_s,
                   .stages = row.wait_receive_s + row.wait_send_s,
                   .input = row.wait_copy_in_s};
  time.norm = std::max(0.0, row.exposed_comm_s - time.gather - time.reduce - time.stages);
  return time;
}

/// The rank's timed steps that count; where none of them was timed, those behind the warm-up.
std::vector<const report::TimingRow*> counted_rows(const report::RankTimings& rank,
                                                   std::int64_t warmup, int steps) {
  std::vector<const report::TimingRow*> counted, later;
  for (const report::TimingRow& row : rank.rows) {
    if (row.step <= warmup) continue;
    if (row.step < first_skipping_step(static_cast<int>(warmup) + steps)) later.push_back(&row);
    if (row.step <= warmup + steps && !row.traced) counted.push_back(&row);
  }
  return counted.empty() ? later : counted;
}

}  // namespace

std::vector<RankMeasure> rank_measures(const report::RunData& run, int steps) {
  const std::optional<Mesh> mesh = mesh_of(run);
  const std::int64_t warmup = run.warmup.value_or(0);
  std::vector<RankMeasure> measures;
  for (const report::RankTimings& rank : run.ranks) {
    RankMeasure sum{.rank = rank.rank, .step_s = 0};
    if (mesh && rank.rank < mesh->world_size())
      sum.stage = mesh->coordinate(rank.rank, Axis::pipeline);
    for (const report::TimingRow& row : rank.rows) {
      if (row.peak > 0) sum.peak = std::fmax(sum.peak, row.peak);
    }
    const std::vector<const report::TimingRow*> rows = counted_rows(rank, warmup, steps);
    if (rows.empty()) continue;
    const auto count = static_cast<double>(rows.size());
    for (const report::TimingRow* row : rows) {
      const ExposedTime time = exposed_in(*row);
      sum.step_s += row->step_s / count;
      for (const ExposedPart& part : kExposedParts)
        sum.exposed.*part.seconds += time.*part.seconds / count;
    }
    measures.push_back(sum);
  }
  return measures;
}

}  // namespace dstrain::bench
