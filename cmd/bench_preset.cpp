#include "cmd/bench_preset.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cmd/bench_runner.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/output.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBenchColumns = 240;  ///< a bench is wide; its tables stay tables

}  // namespace

int run_bench(const BenchOptions& options, const std::function<BenchPreset()>& make) {
  auto interrupts = std::make_unique<BenchInterrupts>();
  require_once(options.recipes, "the list of recipes");
  require_once(options.ranks, "--ranks");
  const auto [plan, pages_of, after] = make();
  const fs::path folder = fs::absolute(options.output).lexically_normal();
  bench::BenchLog log(folder, plan, options.resume);
  BenchRunner runner(plan, log, options.retry);
  const bool all = runner.run_all(*interrupts);
  interrupts.reset();
  print_error("reading the runs\n");
  bench::BenchResults results =
      bench::bench_results(plan, log, [&](std::size_t index) { return runner.planned(index); });
  bench::BenchPages pages = pages_of(results);
  pages.json["plan"] = bench::plan_json(plan);
  const std::string json = json_text(pages.json, 2) + "\n";
  write_file_atomically(folder / pages.page, report::document_markdown(pages.document));
  std::string beside;
  for (const auto& [name, text] : pages.files) {
    write_file_atomically(folder / name, text);
    beside += (beside.empty() ? "" : ", ") + name;
  }
  write_file_atomically(folder / pages.json_file, json);
  if (options.json) {
    print_text(json);
  } else {
    print_text(report::document_text(pages.document, kBenchColumns));
    print_text("\ntables: {}, with {} and {} beside it\n", (folder / pages.page).string(), beside,
               pages.json_file);
  }
  if (after) {
    for (const std::string& line : after(results)) print_error("{}\n", line);
  }
  if (!all) {
    throw Error(ErrorKind::again, "stopped before all runs have ended",
                fmt::format("the same command{} goes on and keeps those that have",
                            options.resume ? "" : " with --resume"));
  }
  return results.runs.empty() ? 1 : 0;
}

void add_bench_options(CLI::App& app, BenchOptions& options, const char* output) {
  options.output = output;
  add_overrides(app, options.overrides);
  app.add_flag("--retry", options.retry, "Run again what has failed.");
  app.add_flag("--json", options.json, "Print one JSON object instead of tables at the end.");
  app.add_option("-o,--output", options.output,
                 fmt::format("Folder of the tables and of the runs. Default: {}.", output));
}

CLI::Option* add_ranks(CLI::App& app, const char* name, std::vector<int>& ranks, const char* help) {
  return add_list(app, name, ranks, help)->check(number_in(1, 1048576));
}

void require_different(std::size_t values, std::size_t different, const char* what) {
  if (values == different) return;
  throw Error(ErrorKind::usage, fmt::format("{} names one of its values twice", what),
              "name each once");
}

}  // namespace dstrain
