#include "engine/bench/zero_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>

#include "engine/bench/bench_tables.h"
#include "engine/bench/table_cells.h"
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

}  // namespace

report::Document zero_document(const ZeroTables& tables, const std::vector<ZeroCell>& cells) {
  std::size_t ran = 0;
  std::set<std::string> devices;
  for (const ZeroCell& cell : cells) {
    ran += cell.ran() ? 1 : 0;
    if (!cell.result.device.empty()) devices.insert(cell.result.device);
  }
  report::Document document{.title = "ZeRO and offload", .lead = {}, .sections = {}};
  document.lead = fmt::format(
      "{} of {} cells ran, on {}. {}", ran, cells.size(),
      devices.empty() ? "no device" : fmt::format("{}", fmt::join(devices, ", ")), kNotes);
  for (const ZeroTable& table : tables.tables) {
    report::Section section{.title = table.title, .blocks = {table.table}};
    if (!table.sentences.empty()) section.blocks.emplace_back(report::List{table.sentences});
    if (!table.not_run.empty()) {
      section.blocks.emplace_back(report::Paragraph{"Cells without figures:"});
      section.blocks.emplace_back(report::List{table.not_run});
    }
    document.sections.push_back(std::move(section));
  }
  if (!tables.left_out.empty())
    document.sections.push_back(
        {.title = "Left out", .blocks = {report::List{.items = tables.left_out}}});
  return document;
}

std::string zero_csv(const std::vector<ZeroCell>& cells) {
  report::Table table;
  table.header = {"recipe",
                  "model",
                  "data",
                  "ranks",
                  "stage",
                  "offload",
                  "pinned",
                  "scaling",
                  "total_runtime_s",
                  "train_runtime_s",
                  "steps_per_s",
                  "samples_per_s",
                  "train_loss",
                  "eval_loss",
                  "eval_samples_per_s",
                  "gpu_peak_mib",
                  "gpu_planned_mib",
                  "gpu_mean_mib",
                  "allocated_mib",
                  "planned_mib",
                  "cpu_peak_mib",
                  "cpu_mean_mib",
                  "host_planned_mib",
                  "step_s",
                  "planned_step_s",
                  "efficiency",
                  "reason"};
  const auto number = [](double value) {
    return report::Cell{.text = "", .figure = {}, .value = value};
  };
  for (const ZeroCell& cell : cells) {
    const CaseResult& r = cell.result;
    const bool offloaded = cell.way.offload != ZeroOffload::none;
    table.rows.push_back(
        {text_cell(r.recipe),
         text_cell(r.model),
         text_cell(r.data),
         number(r.which.ranks),
         number(cell.way.stage),
         text_cell(offload_name(cell.way.offload)),
         text_cell(!offloaded        ? ""
                   : cell.way.pinned ? "true"
                                     : "false"),
         text_cell(cell.scaling ? "weak" : ""),
         number(r.seconds),
         number(r.train_seconds),
         number(r.steps_per_s),
         number(r.samples_per_s),
         number(r.loss),
         number(r.evaluation_losses.empty() ? kUnknown : r.evaluation_losses.back()),
         number(r.evaluation_samples_per_s),
         number(r.gpu_added.peak),
         number(mebibytes(r.device_planned)),
         number(r.gpu_added.mean),
         number(mebibytes(r.memory_peak)),
         number(mebibytes(r.memory_planned)),
         number(r.cpu.peak),
         number(r.cpu.mean),
         number(mebibytes(r.host_planned)),
         number(r.step_s.value),
         number(r.planned_step_s),
         number(r.efficiency),
         text_cell(r.failure)});
  }
  return table_csv(table);
}

nlohmann::ordered_json zero_json(const ZeroTables& tables, const std::vector<ZeroCell>& cells) {
  std::vector<CaseResult> results;
  for (const ZeroCell& cell : cells) results.push_back(cell.result);
  nlohmann::ordered_json rows = results_json(results);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    rows[i]["stage"] = cells[i].way.stage;
    rows[i]["offload"] = offload_name(cells[i].way.offload);
    rows[i]["pinned"] = cells[i].way.offload == ZeroOffload::none
                            ? nlohmann::ordered_json()
                            : nlohmann::ordered_json(cells[i].way.pinned);
    rows[i]["scaling"] = cells[i].scaling ? "weak" : "none";
  }
  auto all = nlohmann::ordered_json::array();
  for (const ZeroTable& table : tables.tables) {
    auto lines = nlohmann::ordered_json::array();
    for (const auto& row : table.table.rows) {
      auto line = nlohmann::ordered_json::array();
      for (const report::Cell& cell : row)
        line.push_back(std::isfinite(cell.value) ? nlohmann::ordered_json(cell.value)
                                                 : nlohmann::ordered_json(cell.text));
      lines.push_back(line);
    }
    all.push_back({{"name", table.file},
                   {"title", table.title},
                   {"header", table.table.header},
                   {"rows", lines},
                   {"sentences", table.sentences},
                   {"not_run", table.not_run}});
  }
  return {{"cells", rows}, {"tables", all}, {"left_out", tables.left_out}};
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
