#include "engine/bench/parallel_pages.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/make_folder.h"
#include "engine/base/run_layout.h"
#include "engine/bench/parallel_tables.h"
#include "engine/trace/input_stream.h"
#include "engine/trace/output_file.h"

namespace dstrain::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kLayoutNotes =
    "Rates and steps are medians of the steps that count; rates are tokens, of images samples. "
    "Forward, backward (with recomputation), weight (gradients of matrices that come later) and "
    "optimizer are times of the compute lane in the traced steps, its waits left out; in blocks: "
    "the collectives of ranks that share blocks, which are a part of them. Gather, reduce, stages, "
    "norm and input: the compute lane stands still for parameters, for gradients, "
    "for other stages, for the sum over all ranks before the update, for samples. Means of the "
    "ranks. Exchanges: what a step is longer than the median of five steps without gathers and "
    "reductions of parameters and gradients at the end of the run; contention: what of that is no "
    "wait for them, since kernels beside them are slower. "
    "Bubble: stages and norm, share of the step, as the simulation counts it. Peaks are "
    "what dstrain allocates. Collectives are those of a rank of the fullest stage; transfers "
    "between stages are planned by boundary and counted by tensor, include waits and have no rate. "
    "Experts get as many bytes as are routed to them. planned: what `dstrain plan` says.";

constexpr FieldColumn kBatchFields[] = {{"micro", "micro"}, {"micro_batches", "micro_batches"}};
constexpr FieldColumn kLayoutFields[] = {
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
Fields fields_of_layout(const CaseResult& r) {
  const Case& one = r.which;
  const bool searched = one.search.row > 0;
  Fields row = {{"recipe", r.recipe},
                {"ranks", one.ranks},
                {"weak", one.weak},
                {"strong", one.strong},
                {"auto_row", searched ? Json(one.search.row) : Json()},
                {"auto_step_s", searched ? number_json(one.search.step_s) : Json()},
                {"layout", r.layout},
                {"schedule", r.schedule},
                {"samples", one.samples}};
  add_fields(row, r.figures, kBatchFields);
  row.insert(row.end(), {{"device", r.device}, {"runs", r.runs}, {"reason", r.failure}});
  add_fields(row, r.figures, kLayoutFields);
  return row;
}

Json stages_json(const CaseResult& result) {
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

Json collectives_json(const CaseResult& result) {
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

BenchPages parallel_pages(const std::vector<CaseResult>& results) {
  const std::vector<BenchTable> tables = parallel_tables(results);
  Json rows = Json::array();
  for (const CaseResult& result : results) {
    Json row = fields_json(fields_of_layout(result));
    // Behind the batch.
    if (const auto& all = result.which.overrides; all.size() > 1)
      row["settings"] = std::vector(all.begin() + 1, all.end());
    row["stages"] = stages_json(result);
    row["collectives"] = collectives_json(result);
    rows.push_back(std::move(row));
  }
  const std::string lead =
      fmt::format("{} {}", ran_words(results, "layouts and batches"), kLayoutNotes);
  return {.page = "parallel.md",
          .document = tables_document("Layouts of the ranks", lead, tables,
                                      {{"Not run", not_run(results)}}),
          .files = {{"parallel.csv", cases_csv(results, fields_of_layout)}},
          .json_file = "parallel.json",
          .json = {{"rows", std::move(rows)},
                   {"tables", tables_json(tables)},
                   {"not_run", not_run(results)}}};
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
