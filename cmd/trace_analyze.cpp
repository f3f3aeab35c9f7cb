#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/number_option.h"
#include "cmd/trace_options.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/base/printable.h"
#include "engine/trace/analysis.h"
#include "engine/trace/hta.h"
#include "engine/trace/tables.h"
#include "engine/trace/trace_files.h"

namespace dstrain {
namespace {

constexpr std::size_t kDefaultTop = 10;

struct AnalyzeOptions {
  std::vector<std::string> sources;
  std::string steps, ranks, by = "kernel", csv;
  std::size_t top = kDefaultTop;
  bool json = false, salvage = false, as_hta = false;
};

/// Rows of one figure of HTA; its columns are the keys.
trace::Table hta_table(const std::string& name, const nlohmann::ordered_json& rows) {
  trace::Table table{name, name, {}, {}, 0};
  for (const auto& row : rows) {
    if (!row.is_object()) continue;
    std::vector<std::string> cells;
    std::vector<std::string> header;
    for (const auto& [key, value] : row.items()) {
      header.push_back(key);
      cells.push_back(value.is_string() ? value.get<std::string>() : value.dump());
    }
    table.header = std::move(header);
    table.rows.push_back(std::move(cells));
  }
  return table;
}

int analyze_as_hta(const AnalyzeOptions& options, const trace::AnalysisOptions& wanted) {
  if (!options.steps.empty() || options.by != "kernel" || options.top != kDefaultTop)
    throw Error(ErrorKind::usage, "--as-hta goes with neither --steps nor --by nor --top",
                "HTA takes all steps but the last, and kernels by name");
  const std::vector<std::filesystem::path> sources(options.sources.begin(), options.sources.end());
  const trace::TracePaths found = trace::find_traces(sources, trace::TraceUse::analyze);
  for (const std::string& note : found.notes) print_error("note: {}\n", note);
  const auto figures = trace::as_hta(found.files, wanted.ranks, wanted.salvage);
  std::vector<trace::Table> tables;
  for (const auto& [name, rows] : figures.items()) {
    if (rows.is_array())
      tables.push_back(hta_table(name, rows));
    else
      for (const auto& [part, part_rows] : rows.items())
        tables.push_back(hta_table(name + "_" + part, part_rows));
  }
  if (!options.csv.empty()) {
    std::map<std::string, std::string> files;
    for (const trace::Table& table : tables) files[table.name + ".csv"] = trace::csv_of(table);
    write_csv(options.csv, files);
  }
  if (options.json) {
    print_text("{}\n", json_text(figures, 1));
    return 0;
  }
  for (const trace::Table& table : tables) {
    // A row for each launch is nothing to read.
    if (table.name == "cuda_kernel_launch_stats")
      print_text("{}: {} rows, by --json or --csv\n", table.name, table.rows.size());
    else
      print_text("{}\n", trace::text_of(table));
  }
  return 0;
}

int analyze_traces(const AnalyzeOptions& options) {
  trace::AnalysisOptions wanted;
  set_steps(wanted, options.steps);
  wanted.ranks = parse_ranks(options.ranks);
  wanted.top = options.top;
  wanted.by = parse_group_by(options.by);
  wanted.salvage = options.salvage;
  if (options.as_hta) return analyze_as_hta(options, wanted);
  const trace::Analysis analysis =
      trace::analyze({options.sources.begin(), options.sources.end()}, wanted);
  if (!options.csv.empty()) write_csv(options.csv, trace::to_csv(analysis));
  if (options.json)
    print_text("{}\n", json_text(trace::to_json(analysis), 1));
  else
    print_text(trace::to_text(analysis));
  return 0;
}

}  // namespace

Command add_trace_analyze(CLI::App& root) {
  auto options = std::make_shared<AnalyzeOptions>();
  CLI::App* app = root.add_subcommand(
      "analyze", "Where the time of the devices goes: busy, idle, exposed communication, kernels.");
  app->footer(
      "Reads traces of dstrain and of PyTorch's profiler, one rank after another. Definitions: "
      "engine/trace/README.md.\n"
      "Example: dstrain trace analyze runs/quickstart-20260101-000000-1a2b --steps 4-6 --by "
      "action");
  app->add_option("source", options->sources,
                  "Runs, folders with traces, or files (.json, .json.gz, .json.zst; a ZIP of them).")
      ->required();
  app->add_option("--steps", options->steps, "Only these steps: A-B or A. Default: all.");
  app->add_option("--ranks", options->ranks, "Only these ranks: 0,2-4. Default: all.");
  app->add_option("--top", options->top, "Kernels of each type. Default: 10.")
      ->check(number_in(1, 100000));
  app->add_option("--by", options->by,
                  "Rows of the table of kernels: kernel, action, phase, block.")
      ->check(CLI::IsMember({"kernel", "action", "phase", "block"}));
  app->add_flag("--as-hta", options->as_hta,
                "The figures of HolisticTraceAnalysis 0.5.0, by its rules and rounding.");
  app->add_flag("--salvage", options->salvage, "Go on where a file is broken or cut off.");
  app->add_flag("--json", options->json, "Print one object for programs; times in nanoseconds.");
  app->add_option("--csv", options->csv, "Also write a file a figure into this folder.");
  return {app, [options] { return analyze_traces(*options); }};
}

}  // namespace dstrain
