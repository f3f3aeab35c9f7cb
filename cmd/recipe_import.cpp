#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "cmd/command.h"
#include "cmd/input_path.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/trainer_file.h"
#include "engine/base/file.h"
#include "engine/base/output.h"
#include "engine/base/printable.h"
#include "engine/import/import.h"

namespace dstrain {
namespace {

struct ImportRequest {
  importing::ImportOptions import;
  std::string recipe;
  std::string report;
  bool json = false;
  bool keys = false;
};

void print_summary(const importing::Imported& imported, const std::string& recipe) {
  std::size_t counts[5] = {};
  for (const importing::Given& given : imported.keys)
    ++counts[static_cast<std::size_t>(given.fate)];
  print_error("{} keys: {} the same, {} translated, {} without effect, {} accepted\n",
              imported.keys.size(), counts[0], counts[1], counts[2], counts[3]);
  for (const importing::AutoValue& one : imported.autos)
    print_error("\"auto\" {}: {}, {}\n", one.path, one.value, one.from);
  for (const std::string& note : imported.notes) print_error("note: {}\n", note);
  for (const std::string& line : imported.unread) print_error("not read: {}\n", shown(line, 300));
  for (const Diagnostic& warning : imported.warnings) print_error("{}\n", format(warning));
  for (const Diagnostic& one : imported.unsaid)
    print_error("still to be said: {}{}\n", one.path, one.hint.empty() ? "" : "; " + one.hint);
  print_error("start: {}\n", importing::launch_line(imported, recipe));
}

int import_recipe(const ImportRequest& request) {
  if (request.keys) {
    print_text(importing::keys_markdown());
    return 0;
  }
  const importing::ImportOptions& options = request.import;
  if (options.deepspeed.empty() && options.trainer.empty() && options.accelerate.empty() &&
      options.command.empty() && options.sbatch.empty()) {
    throw Error(
        ErrorKind::usage, "nothing to import",
        "give ds_config.json, --trainer FILE, --accelerate FILE, --command '...' or --sbatch FILE");
  }
  for (const auto& [option, file] : {std::pair("-o", request.recipe), {"--report", request.report}})
    refuse_own_input(option, file,
                     {options.deepspeed, options.trainer, options.accelerate, options.sbatch});
  const importing::Imported imported = importing::import_settings(options);
  const std::string name = request.recipe.empty() ? "recipe.yaml" : request.recipe;
  if (!request.recipe.empty()) write_file_atomically(request.recipe, imported.recipe);
  if (!request.report.empty())
    write_file_atomically(request.report, importing::report_markdown(imported, name));
  if (request.json)
    print_text(importing::report_json(imported));
  else if (request.recipe.empty())
    print_text(imported.recipe);
  if (!request.json) print_summary(imported, name);
  return 0;
}

}  // namespace

Command add_recipe_import(CLI::App& root) {
  auto request = std::make_shared<ImportRequest>();
  request->import.open = read_settings_file;
  CLI::App* app = root.add_subcommand(
      "import-deepspeed",
      "Make a recipe of ds_config.json, TrainingArguments, accelerate's file, a command line and "
      "a\n"
      "batch script. Every key is honoured, said to have no effect, or refused; \"auto\" is filled "
      "as\n"
      "Transformers does. On a refusal nothing is written (exit code 64).\n"
      "recipes/FROM_DEEPSPEED.md is the guide, recipes/DEEPSPEED_KEYS.md lists the keys.\n"
      "Example: dstrain recipe import-deepspeed ds_config.json --trainer args.json --ranks 8 -o "
      "mine.yaml");
  importing::ImportOptions& import = request->import;
  app->add_option("config", import.deepspeed,
                  "ds_config.json. Default: what the other files name.");
  app->add_option("--trainer", import.trainer,
                  "TrainingArguments: training_args.bin, or JSON (to_json_string(), a file for "
                  "HfArgumentParser).");
  app->add_option("--accelerate", import.accelerate, "File that accelerate config wrote (YAML).");
  app->add_option("--command", import.command,
                  "Command line of deepspeed, torchrun or accelerate launch, with the script's "
                  "arguments, as one word.");
  app->add_option("--sbatch", import.sbatch, "Batch script, of which the #SBATCH lines are read.");
  app->add_option("--model", import.model, "Folder of the model (config.json), or its name.");
  add_overrides(*app, import.settings);
  app->add_option("--ranks", import.ranks,
                  "Number of ranks. Default: what command line and files say.")
      ->check(number_in(1, 1 << 20));
  app->add_option("--accept", import.accepted,
                  "Goes on although this key would give other numbers. Repeatable.")
      ->allow_extra_args(false);
  app->add_option("-o,--output", request->recipe, "Recipe to write. Default: standard output.");
  app->add_option("--report", request->report,
                  "Report to write (Markdown): what became of each key.");
  app->add_flag("--json", request->json, "Print recipe and report as JSON.");
  app->add_flag("--keys", request->keys,
                "Print the page of all keys that are known (Markdown), and end.");
  return {app, [request] { return import_recipe(*request); }};
}

}  // namespace dstrain
