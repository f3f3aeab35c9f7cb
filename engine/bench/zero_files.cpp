#include "engine/bench/zero_files.h"

#include <fmt/format.h>

#include <set>

#include "engine/report/samples.h"

namespace dstrain::bench {
namespace {

constexpr const char* kNotes =
    "Train Runtime is the sum of the step times, without start and evaluation; Total Runtime that "
    "of the program. Steps/sec, Samples/sec and Step are medians of steady steps, Train Loss is "
    "the "
    "mean of the last tenth of them. GPU memory is the driver's figure less that before the start, "
    "of the fullest GPU; CPU memory is resident and shared memory of all ranks of the first host, "
    "ten times a second.";

constexpr FieldColumn kColumns[] = {
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

std::vector<Field> fields_of(const ZeroCell& cell) {
  const CaseResult& r = cell.result;
  std::vector<Field> row = {{"recipe", r.recipe},
                            {"model", r.model},
                            {"data", r.data},
                            {"ranks", r.which.ranks},
                            {"stage", cell.way.stage},
                            {"offload", offload_name(cell.way.offload)},
                            {"pinned", pinned_json(cell.way)},
                            {"scaling", cell.scaling ? "weak" : ""}};
  add_fields(row, r.figures, kColumns);
  row.emplace_back("reason", r.failure);
  return row;
}

}  // namespace

report::Document zero_document(const BenchTables& tables, const std::vector<ZeroCell>& cells) {
  std::size_t ran = 0;
  std::set<std::string> devices;
  for (const ZeroCell& cell : cells) {
    ran += cell.ran() ? 1 : 0;
    if (!cell.result.device.empty()) devices.insert(cell.result.device);
  }
  return tables_document("ZeRO and offload",
                         fmt::format("{} of {} cells ran, on {}. {}", ran, cells.size(),
                                     device_words(devices), kNotes),
                         tables.tables, {{"Left out", tables.left_out}});
}

std::string zero_csv(const std::vector<ZeroCell>& cells) {
  std::vector<std::vector<Field>> rows;
  for (const ZeroCell& cell : cells) rows.push_back(fields_of(cell));
  return fields_csv(fields_of({}), rows);
}

nlohmann::ordered_json zero_json(const BenchTables& tables, const std::vector<ZeroCell>& cells) {
  std::vector<CaseResult> results;
  for (const ZeroCell& cell : cells) results.push_back(cell.result);
  nlohmann::ordered_json rows = results_json(results);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    rows[i].update({{"stage", cells[i].way.stage},
                    {"offload", offload_name(cells[i].way.offload)},
                    {"pinned", pinned_json(cells[i].way)},
                    {"scaling", cells[i].scaling ? "weak" : "none"}});
  }
  return {{"cells", rows}, {"tables", tables_json(tables.tables)}, {"left_out", tables.left_out}};
}

std::string memory_series_csv(const std::vector<std::filesystem::path>& runs) {
  std::string out = "run,elapsed_s,cpu_percent,real_mib,virtual_mib\n";
  for (const std::filesystem::path& path : runs) {
    report::RunData run;
    run.path = path;
    report::read_samples(run);
    for (const report::CpuSample& sample : run.cpu)
      out += fmt::format("{},{:.3f},{:.1f},{:.3f},{:.3f}\n", path.filename().string(),
                         sample.elapsed_s, sample.share, sample.resident_mib, sample.virtual_mib);
  }
  return out;
}

}  // namespace dstrain::bench
