#include "engine/bench/parallel_files.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/make_folder.h"
#include "engine/base/run_layout.h"
#include "engine/trace/input_stream.h"
#include "engine/trace/output_file.h"

namespace dstrain::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kNotes =
    "Rates and steps are medians of the steps that count; rates are tokens, of images samples. "
    "Forward, backward (with recomputation), weight (gradients of matrices that come later) and "
    "optimizer are times of the compute lane in the traced steps, its waits left out; in blocks: "
    "the collectives of tensor, sequence and expert ranks, which are a part of them. Gather, "
    "reduce, stages, norm and input: the compute lane stands still for parameters, for gradients, "
    "for other stages, for the sum over all ranks before the update, for samples. Means of the "
    "ranks. Exchanges: what a step is longer than the median of five steps without gathers and "
    "reductions of parameters and gradients at the end of the run; contention: what of that is no "
    "wait for them, since kernels beside them are slower. "
    "Bubble: stages and norm, share of the step, as the simulation counts it. Peaks are "
    "what dstrain allocates. Collectives are those of a rank of the fullest stage; transfers "
    "between stages are planned by boundary and counted by tensor, include waits and have no rate. "
    "Experts get as many bytes as are routed to them. planned: what `dstrain plan` says.";

constexpr FieldColumn kBatch[] = {{"micro", "micro"}, {"micro_batches", "micro_batches"}};
constexpr FieldColumn kMeasured[] = {
    {"tokens_per_s", "tokens_per_s"},
    {"samples_per_s", "samples_per_s"},
    {"rate_per_rank", "rate_per_rank"},
    {"mfu", "mfu"},
    {"loss", "final_loss"},
    {"step_s", "step_s"},
    {"planned_step_s", "planned_step_s"},
    {"forward_s", "forward_s"},
    {"backward_s", "backward_s"},
    {"weight_s", "weight_s"},
    {"optimizer_s", "optimizer_s"},
    {"exposed_gather_s", "exposed_gather_s"},
    {"exposed_reduce_s", "exposed_reduce_s"},
    {"exposed_stages_s", "exposed_stages_s"},
    {"exposed_norm_s", "exposed_norm_s"},
    {"exposed_input_s", "exposed_input_s"},
    {"exposed_blocks_s", "exposed_blocks_s"},
    {"bubble", "bubble"},
    {"planned_bubble", "planned_bubble"},
    {"exchange_s", "exchange_s"},
    {"planned_exchange_s", "planned_exchange_s"},
    {"contention_s", "contention_s"},
    {"peak_bytes", "peak_bytes"},
    {"planned_bytes", "memory_planned"},
    {"weak_efficiency", "weak_efficiency"},
    {"strong_efficiency", "strong_efficiency"},
};

/// What is no list, by its key.
std::vector<Field> fields_of(const ParallelResult& r) {
  const ParallelWay& way = r.way;
  std::vector<Field> row = {{"recipe", r.result.recipe},
                            {"ranks", way.ranks},
                            {"weak", way.weak},
                            {"strong", way.strong},
                            {"auto_row", way.row > 0 ? Json(way.row) : Json()},
                            {"auto_step_s", way.row > 0 ? number_json(way.row_step_s) : Json()},
                            {"layout", r.layout},
                            {"schedule", r.schedule},
                            {"samples", way.samples}};
  add_fields(row, r.result.figures, kBatch);
  row.insert(row.end(),
             {{"device", r.result.device}, {"runs", r.result.runs}, {"reason", r.result.failure}});
  add_fields(row, r.result.figures, kMeasured);
  return row;
}

Json stages_json(const ParallelResult& result) {
  Json list = Json::array();
  for (const StageFigures& stage : result.stages) {
    list.push_back({{"stage", stage.stage},
                    {"blocks", stage.blocks},
                    {"peak_bytes", number_json(stage.peak)},
                    {"planned_bytes", number_json(stage.planned)},
                    {"bubble", number_json(stage.bubble)},
                    {"planned_bubble", number_json(stage.planned_bubble)}});
  }
  return list;
}

Json collectives_json(const ParallelResult& result) {
  Json list = Json::array();
  for (const CollectiveFigures& one : result.collectives) {
    list.push_back({{"operation", one.operation},
                    {"purpose", one.purpose},
                    {"calls", number_json(one.calls)},
                    {"planned_calls", number_json(one.planned_calls)},
                    {"bytes", number_json(one.bytes)},
                    {"planned_bytes", number_json(one.planned_bytes)},
                    {"bus_bytes_per_s", number_json(one.bus_rate)}});
  }
  return list;
}

/// One file, unpacked.
void unpack(const fs::path& from, const fs::path& to) {
  trace::InputStream in(from);
  trace::OutputFile out(to);
  std::string block(std::size_t{1} << 20, '\0');
  while (const std::size_t size = in.read(block.data(), block.size()))
    out.write(std::string_view(block).substr(0, size));
  if (!in.problem().empty())
    throw Error(ErrorKind::data, fmt::format("{}: {}", from.string(), in.problem()));
  out.close();
}

}  // namespace

report::Document parallel_document(const std::vector<BenchTable>& tables,
                                   const std::vector<ParallelResult>& results) {
  std::size_t ran = 0;
  std::set<std::string> devices;
  for (const ParallelResult& one : results) {
    ran += one.ran() ? 1 : 0;
    if (!one.result.device.empty()) devices.insert(one.result.device);
  }
  return tables_document("Layouts of the ranks",
                         fmt::format("{} of {} layouts and batches ran, on {}. {}", ran,
                                     results.size(), device_words(devices), kNotes),
                         tables, {{"Not run", not_run(results)}});
}

std::string parallel_csv(const std::vector<ParallelResult>& results) {
  std::vector<std::vector<Field>> rows;
  for (const ParallelResult& result : results) rows.push_back(fields_of(result));
  return fields_csv(fields_of({}), rows);
}

Json parallel_json(const std::vector<BenchTable>& tables,
                   const std::vector<ParallelResult>& results) {
  Json rows = Json::array();
  for (const ParallelResult& result : results) {
    Json row = fields_json(fields_of(result));
    if (!result.way.settings.empty()) row["settings"] = result.way.settings;
    row["stages"] = stages_json(result);
    row["collectives"] = collectives_json(result);
    rows.push_back(std::move(row));
  }
  return {
      {"rows", std::move(rows)}, {"tables", tables_json(tables)}, {"not_run", not_run(results)}};
}

int copy_profiles(const fs::path& run, const fs::path& folder) {
  std::error_code error;
  const fs::path traces = RunLayout(run).traces();
  int ranks = 0;
  for (const auto& entry : fs::directory_iterator(traces, error)) {
    const std::string name = entry.path().filename().string();
    const std::size_t trace = name.find("_trace.json");
    const bool is_trace = name.starts_with("rank") && trace != std::string::npos;
    if (!is_trace && !name.ends_with("_actions.json")) continue;
    make_folder(folder, "name another one as trace.output");
    unpack(entry.path(), folder / (is_trace ? name.substr(0, trace) + "_trace.json" : name));
    ranks += is_trace ? 1 : 0;
  }
  return ranks;
}

}  // namespace dstrain::bench
