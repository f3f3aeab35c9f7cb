#include "engine/bench/zero_pages.h"

#include <fmt/format.h>

#include "engine/bench/run_tables.h"
#include "engine/bench/zero_plan.h"
#include "engine/bench/zero_tables.h"

namespace dstrain::bench {
namespace {

constexpr const char* kCellNotes =
    "Train Runtime is the sum of the step times, without start and evaluation; Total Runtime that "
    "of the program. Steps/sec, Samples/sec and Step are medians of steady steps, Train Loss is "
    "the "
    "mean of the last tenth of them. GPU memory is the driver's figure less that before the start, "
    "of the fullest GPU; CPU memory is resident and shared memory of all ranks of the first host, "
    "ten times a second.";

constexpr FieldColumn kZeroFields[] = {
    {"total_runtime_s", "program_seconds"},
    {"train_runtime_s", "train_seconds"},
    {"steps_per_s", "steps_per_s"},
    {"samples_per_s", "samples_per_s"},
    {"train_loss", "final_loss"},
    {"eval_loss", "evaluation_loss"},
    {"eval_samples_per_s", "evaluation_samples_per_s"},
    {"gpu_peak_mib", "gpu_added_peak"},
    {"gpu_planned_mib", "device_planned", kPerMib},
    {"gpu_mean_mib", "gpu_added_mean"},
    {"allocated_mib", "memory_peak", kPerMib},
    {"planned_mib", "memory_planned", kPerMib},
    {"cpu_peak_mib", "cpu_peak"},
    {"cpu_mean_mib", "cpu_mean"},
    {"host_planned_mib", "host_planned", kPerMib},
    {"step_s", "step_s"},
    {"planned_step_s", "planned_step_s"},
    {"efficiency", "efficiency"},
};

/// null without offload.
nlohmann::ordered_json pinned_json(const ZeroWay& way) {
  if (way.offload == ZeroOffload::none) return nullptr;
  return way.pinned;
}

Fields fields_of_cell(const CaseResult& r) {
  const ZeroWay& way = r.which.way;
  Fields row = {{"recipe", r.recipe},
                {"model", r.model},
                {"data", r.data},
                {"ranks", r.which.ranks},
                {"stage", way.stage},
                {"offload", offload_name(way.offload)},
                {"pinned", pinned_json(way)},
                {"scaling", r.which.weak ? "weak" : ""}};
  add_fields(row, r.figures, kZeroFields);
  row.emplace_back("reason", r.failure);
  return row;
}

}  // namespace

BenchPages zero_pages(const BenchResults& results) {
  const std::vector<CaseResult>& cells = results.cases;
  const BenchTables tables = zero_tables(cells);
  nlohmann::ordered_json rows = results_json(cells);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const ZeroWay& way = cells[i].which.way;
    rows[i].update({{"stage", way.stage},
                    {"offload", offload_name(way.offload)},
                    {"pinned", pinned_json(way)},
                    {"scaling", cells[i].which.weak ? "weak" : "none"}});
  }
  const std::string lead = fmt::format("{} {}", ran_words(cells, "cells"), kCellNotes);
  return {
      .page = "zero.md",
      .document =
          tables_document("ZeRO and offload", lead, tables.tables, {{"Left out", tables.left_out}}),
      .files = {{"zero.csv", cases_csv(cells, fields_of_cell)},
                {"zero_memory.csv", memory_series_csv(results.runs)}},
      .json_file = "zero.json",
      .json = {
          {"cells", rows}, {"tables", tables_json(tables.tables)}, {"left_out", tables.left_out}}};
}

std::string memory_series_csv(const std::vector<report::RunFigures>& runs) {
  std::string out = "run,elapsed_s,cpu_percent,real_mib,virtual_mib\n";
  for (const report::RunFigures& run : runs) {
    for (const report::CpuSample& sample : run.data.cpu)
      out += fmt::format("{},{:.3f},{:.1f},{:.3f},{:.3f}\n", run.data.name, sample.elapsed_s,
                         sample.share, sample.resident_mib, sample.virtual_mib);
  }
  return out;
}

}  // namespace dstrain::bench
