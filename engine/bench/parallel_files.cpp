#include "engine/bench/parallel_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/make_folder.h"
#include "engine/base/run_layout.h"
#include "engine/bench/bench_tables.h"
#include "engine/bench/table_cells.h"
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

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

/// What is no list, by its key.
std::vector<std::pair<const char*, Json>> flat(const ParallelResult& r) {
  const ParallelWay& way = r.way;
  return {{"recipe", r.recipe},
          {"ranks", way.ranks},
          {"weak", way.weak},
          {"strong", way.strong},
          {"auto_row", way.row > 0 ? Json(way.row) : Json()},
          {"auto_step_s", way.row > 0 ? number(way.row_step_s) : Json()},
          {"layout", r.layout},
          {"schedule", r.schedule},
          {"samples", way.samples},
          {"micro", number(r.micro)},
          {"micro_batches", number(r.micro_batches)},
          {"device", r.device},
          {"runs", r.runs},
          {"reason", r.failure},
          {"tokens_per_s", number(r.tokens_per_s)},
          {"samples_per_s", number(r.samples_per_s)},
          {"rate_per_rank", number(r.rank_rate())},
          {"mfu", number(r.mfu)},
          {"loss", number(r.loss)},
          {"step_s", number(r.step_s)},
          {"planned_step_s", number(r.planned_step_s)},
          {"forward_s", number(r.forward_s)},
          {"backward_s", number(r.backward_s)},
          {"weight_s", number(r.weight_s)},
          {"optimizer_s", number(r.optimizer_s)},
          {"exposed_gather_s", number(r.exposed.gather)},
          {"exposed_reduce_s", number(r.exposed.reduce)},
          {"exposed_stages_s", number(r.exposed.stages)},
          {"exposed_norm_s", number(r.exposed.norm)},
          {"exposed_input_s", number(r.exposed.input)},
          {"exposed_blocks_s", number(r.exposed.blocks)},
          {"bubble", number(r.bubble)},
          {"planned_bubble", number(r.planned_bubble)},
          {"exchange_s", number(r.exchange_s())},
          {"planned_exchange_s", number(r.planned_exchange_s())},
          {"contention_s", number(r.contention_s())},
          {"peak_bytes", number(r.memory)},
          {"planned_bytes", number(r.planned_memory)},
          {"weak_efficiency", number(r.weak_efficiency)},
          {"strong_efficiency", number(r.strong_efficiency)}};
}

Json stages_json(const ParallelResult& result) {
  Json list = Json::array();
  for (const StageFigures& stage : result.stages) {
    list.push_back({{"stage", stage.stage},
                    {"blocks", stage.blocks},
                    {"peak_bytes", number(stage.peak)},
                    {"planned_bytes", number(stage.planned)},
                    {"bubble", number(stage.bubble)},
                    {"planned_bubble", number(stage.planned_bubble)}});
  }
  return list;
}

Json collectives_json(const ParallelResult& result) {
  Json list = Json::array();
  for (const CollectiveFigures& one : result.collectives) {
    list.push_back({{"operation", one.operation},
                    {"purpose", one.purpose},
                    {"calls", number(one.calls)},
                    {"planned_calls", number(one.planned_calls)},
                    {"bytes", number(one.bytes)},
                    {"planned_bytes", number(one.planned_bytes)},
                    {"bus_bytes_per_s", number(one.bus_rate)}});
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

report::Document parallel_document(const std::vector<ParallelTable>& tables,
                                   const std::vector<ParallelResult>& results) {
  std::size_t ran = 0;
  std::set<std::string> devices;
  for (const ParallelResult& result : results) {
    ran += result.runs > 0 ? 1 : 0;
    if (!result.device.empty()) devices.insert(result.device);
  }
  report::Document document{.title = "Layouts of the ranks", .lead = {}, .sections = {}};
  document.lead = fmt::format(
      "{} of {} layouts and batches ran, on {}. {}", ran, results.size(),
      devices.empty() ? "no device" : fmt::format("{}", fmt::join(devices, ", ")), kNotes);
  for (const ParallelTable& table : tables) {
    report::Section section{.title = table.title, .blocks = {table.table}};
    if (!table.sentences.empty()) section.blocks.emplace_back(report::List{table.sentences});
    document.sections.push_back(std::move(section));
  }
  if (std::vector<std::string> reasons = not_run(results); !reasons.empty())
    document.sections.push_back({.title = "Not run", .blocks = {report::List{std::move(reasons)}}});
  return document;
}

std::string parallel_csv(const std::vector<ParallelResult>& results) {
  report::Table table;
  for (const auto& [key, value] : flat(ParallelResult())) table.header.emplace_back(key);
  for (const ParallelResult& result : results) {
    std::vector<report::Cell>& row = table.rows.emplace_back();
    for (const auto& [key, value] : flat(result)) {
      if (value.is_number())
        row.push_back({.text = "", .figure = {}, .value = value.get<double>()});
      else if (value.is_boolean())
        row.push_back(text_cell(value.get<bool>() ? "true" : "false"));
      else
        row.push_back(text_cell(value.is_string() ? value.get<std::string>() : ""));
    }
  }
  return table_csv(table);
}

Json parallel_json(const std::vector<ParallelTable>& tables,
                   const std::vector<ParallelResult>& results) {
  Json rows = Json::array();
  for (const ParallelResult& result : results) {
    Json row;
    for (auto& [key, value] : flat(result)) row[key] = std::move(value);
    if (!result.way.settings.empty()) row["settings"] = result.way.settings;
    row["stages"] = stages_json(result);
    row["collectives"] = collectives_json(result);
    rows.push_back(std::move(row));
  }
  Json all = Json::array();
  for (const ParallelTable& table : tables) {
    Json lines = Json::array();
    for (const auto& row : table.table.rows) {
      Json line = Json::array();
      for (const report::Cell& cell : row)
        line.push_back(std::isfinite(cell.value) ? Json(cell.value) : Json(cell.text));
      lines.push_back(std::move(line));
    }
    all.push_back({{"name", table.file},
                   {"title", table.title},
                   {"header", table.table.header},
                   {"rows", std::move(lines)},
                   {"sentences", table.sentences}});
  }
  return {{"rows", std::move(rows)}, {"tables", std::move(all)}, {"not_run", not_run(results)}};
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
