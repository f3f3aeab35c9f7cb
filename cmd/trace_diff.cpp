#include <fmt/format.h>

#include <limits>
#include <memory>
#include <string>

#include "cmd/command.h"
#include "cmd/number_option.h"
#include "cmd/trace_options.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/trace/diff.h"

namespace dstrain {
namespace {

struct DiffOptions {
  std::string base, test, steps, ranks, by = "kernel";
  std::size_t top = 10;
  double fail_above = std::numeric_limits<double>::infinity();
  bool json = false, salvage = false;
};

int diff_traces(const DiffOptions& options) {
  trace::AnalysisOptions wanted;
  set_steps(wanted, options.steps);
  wanted.ranks = parse_ranks(options.ranks);
  wanted.top = std::numeric_limits<std::size_t>::max();
  wanted.by = parse_group_by(options.by);
  wanted.salvage = options.salvage;
  const trace::Diff found =
      trace::diff(trace::analyze({options.base}, wanted), trace::analyze({options.test}, wanted));
  if (options.json)
    print_text("{}\n", json_text(trace::to_json(found), 1));
  else
    print_text(trace::to_text(found, options.top));
  if (found.growth() <= options.fail_above) return 0;
  print_error("a step takes {:.2f} % longer, more than {} %\n", found.growth(), options.fail_above);
  return 1;
}

}  // namespace

Command add_trace_diff(CLI::App& root) {
  auto options = std::make_shared<DiffOptions>();
  CLI::App* app =
      root.add_subcommand("diff", "What two traces spend differently, of a step and rank.");
  app->footer(
      "Exit code 1 with --fail-above when a step of TEST takes longer than allowed.\n"
      "Example: dstrain trace diff runs/before runs/after --by action --fail-above 2");
  app->add_option("base", options->base, "Run, folder or file that is the measure.")->required();
  app->add_option("test", options->test, "Run, folder or file that is compared.")->required();
  app->add_option("--steps", options->steps, "Only these steps: A-B or A. Default: all.");
  app->add_option("--ranks", options->ranks, "Only these ranks: 0,2-4. Default: all.");
  app->add_option("--by", options->by, "Rows: kernel, action, phase, block.")
      ->check(CLI::IsMember({"kernel", "action", "phase", "block"}));
  app->add_option("--top", options->top, "Rows to show. Default: 10.")->check(number_in(1, 100000));
  app->add_flag("--salvage", options->salvage, "Go on where a file is broken or cut off.");
  app->add_flag("--json", options->json, "Print one object for programs; times in nanoseconds.");
  app->add_option("--fail-above", options->fail_above,
                  "Percent by which the time of a step may grow.")
      ->check(number_in(0.0, 1e9));
  return {app, [options] { return diff_traces(*options); }};
}

}  // namespace dstrain
