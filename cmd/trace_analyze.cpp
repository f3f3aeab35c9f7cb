#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/number_option.h"
#include "cmd/trace_options.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/trace/analysis.h"

namespace dstrain {
namespace {

struct AnalyzeOptions {
  std::vector<std::string> sources;
  std::string steps, ranks, by = "kernel", csv;
  std::size_t top = 10;
  bool json = false, salvage = false;
};

int analyze_traces(const AnalyzeOptions& options) {
  trace::AnalysisOptions wanted;
  set_steps(wanted, options.steps);
  wanted.ranks = parse_ranks(options.ranks);
  wanted.top = options.top;
  wanted.by = parse_group_by(options.by);
  wanted.salvage = options.salvage;
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
  app->add_flag("--salvage", options->salvage, "Go on where a file is broken or cut off.");
  app->add_flag("--json", options->json, "Print one object for programs; times in nanoseconds.");
  app->add_option("--csv", options->csv, "Also write a file a figure into this folder.");
  return {app, [options] { return analyze_traces(*options); }};
}

}  // namespace dstrain
