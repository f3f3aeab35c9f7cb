#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/input_path.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/base/program_output.h"
#include "engine/base/run_layout.h"
#include "engine/report/document.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

struct ReportOptions {
  std::vector<std::string> runs;
  std::string format = "text";
  std::string output;
  std::string baseline;
  bool json = false;
  bool predict = true;
};

std::optional<double> predict_step(const report::RunFigures& run,
                                   const std::vector<std::string>& overrides) {
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  if (failed || run.ranks < 1) return std::nullopt;
  std::vector<std::string> command = {self.string(),
                                      "plan",
                                      RunLayout(run.data.path).recipe().string(),
                                      "--ranks",
                                      fmt::to_string(run.ranks),
                                      "--json"};
  for (const std::string& override : overrides) command.insert(command.end(), {"--set", override});
  const auto text = output_of(command, 20);
  if (!text) return std::nullopt;
  const nlohmann::json plan = json_or_null(*text);
  if (!plan.is_object() || !plan.contains("fits") || plan["fits"] != true) return std::nullopt;
  const double step = report::number(plan, "step_s");
  return step > 0 ? std::optional(step) : std::nullopt;
}

int report_runs(const ReportOptions& options) {
  std::vector<std::string> paths = options.runs;
  if (!options.baseline.empty()) {
    std::error_code ignored;
    std::erase_if(paths, [&](const std::string& path) {
      return fs::equivalent(path, options.baseline, ignored);
    });
    paths.insert(paths.begin(), options.baseline);
  }
  for (const std::string& path : paths) {
    const RunLayout run{path};
    refuse_own_input("-o", options.output,
                     {run.recipe(), run.plan(), run.failure(), run.metrics(), run.events(),
                      run.confusion(), run.classes(), run.clocks()});
  }
  std::vector<report::RunData> runs;
  for (const std::string& path : paths) runs.push_back(report::read_run(path));
  report::PredictStep predict;
  if (options.predict) predict = predict_step;
  const report::Report report = report::make_report(std::move(runs), predict);

  std::string text;
  if (options.json) {
    text = report::report_json(report);
  } else {
    const report::Document document = report::make_document(report, options.format == "html");
    text = options.format == "html"       ? report::document_html(document)
           : options.format == "markdown" ? report::document_markdown(document)
                                          : report::document_text(document);
  }
  if (options.output.empty()) {
    print_text(text);
  } else {
    write_file_atomically(options.output, text);
  }
  return 0;
}

}  // namespace

Command add_report(CLI::App& root) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* app = root.add_subcommand(
      "report", "Say how fast runs were, where their time went and what to change; compare runs.");
  app->footer(
      "Several runs are compared with the first one, or with --baseline; runs of equal recipes "
      "are\n"
      "repeats, paired in the order given; runs of another model or of other samples are not "
      "compared.\n"
      "Example: dstrain report runs/quickstart-20261123T024220Z-5b2cc1 --format html -o "
      "report.html");
  app->add_option("runs", options->runs, "Folders of runs.")->required()->check(input_folder());
  CLI::Option* format =
      app->add_option("--format", options->format, "text, markdown or html. Default: text.")
          ->check(CLI::IsMember({"text", "markdown", "html"}));
  app->add_option("-o,--output", options->output, "File to write. Default: standard output.");
  app->add_option("--baseline", options->baseline,
                  "Run that the others are compared with. Default: the first.")
      ->check(input_folder());
  app->add_flag("--json", options->json, "Print one JSON object for programs instead.")
      ->excludes(format);
  app->add_flag("!--no-predict", options->predict,
                "Do not ask `dstrain plan` what an advice would gain. Default: ask.");
  return {app, [options] { return report_runs(*options); }};
}

}  // namespace dstrain
