#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cmd/bench_runner.h"
#include "cmd/command.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/bench/bench_results.h"
#include "engine/bench/bench_tables.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using bench::BenchLog;
using bench::BenchPlan;

struct BenchRunOptions {
  std::vector<std::string> recipes;
  std::vector<std::string> variants;
  std::vector<std::string> own_variants;
  std::vector<int> ranks = {1};
  std::string scaling = "none";
  std::string tables = "full";
  std::string output = "bench";
  bool resume = false;
  bool json = false;
  BenchPlan plan;
};

BenchPlan plan_of(const BenchRunOptions& options) {
  BenchPlan plan = options.plan;
  plan.recipes = options.recipes;
  plan.ranks = options.ranks;
  plan.scaling = options.scaling == "weak"     ? bench::Scaling::weak
                 : options.scaling == "strong" ? bench::Scaling::strong
                                               : bench::Scaling::none;
  for (const std::string& name : options.variants)
    plan.variants.push_back(bench::named_variant(name));
  for (const std::string& text : options.own_variants)
    plan.variants.push_back(bench::own_variant(text));
  if (plan.variants.empty()) plan.variants.push_back(bench::named_variant("recipe"));
  const auto require_once = [](const auto& values, const char* what) {
    std::set<typename std::decay_t<decltype(values)>::value_type> seen;
    for (const auto& value : values) {
      if (seen.insert(value).second) continue;
      throw Error(ErrorKind::usage, fmt::format("{} {} stands there twice", what, value),
                  "name each once");
    }
  };
  std::vector<std::string> names;
  for (const bench::Variant& variant : plan.variants) names.push_back(variant.name);
  require_once(names, "variant");
  require_once(plan.ranks, "--ranks:");
  require_once(plan.recipes, "recipe");
  return plan;
}

int bench_run(const BenchRunOptions& options) {
  const BenchPlan plan = plan_of(options);
  const fs::path folder = fs::absolute(options.output).lexically_normal();
  BenchLog log(folder, plan, options.resume ? bench::Existing::same : bench::Existing::refuse);
  if (BenchInterrupts interrupts; !BenchRunner(plan, log).run_all(interrupts)) {
    throw Error(ErrorKind::again,
                fmt::format("stopped; {} of {} runs have ended", log.records().size(),
                            bench::turns(plan).size()),
                "the same command with --resume goes on");
  }
  const std::vector<bench::CaseResult> results = bench::bench_results(plan, log);
  const bench::BenchTables tables = bench::bench_tables(
      plan, results, options.tables == "seeds" ? bench::TableSet::seeds : bench::TableSet::full);
  const report::Document document = bench::bench_document(tables, results);
  write_file_atomically(folder / "tables.md", report::document_markdown(document));
  for (const bench::BenchTable& table : tables.tables)
    write_file_atomically(folder / fmt::format("table-{}.csv", table.file),
                          bench::table_csv(table.table));
  nlohmann::ordered_json json = {{"plan", bench::plan_json(plan)}};
  json["results"] = bench::results_json(results);
  const std::string json_of_all = json_text(json, 2) + "\n";
  write_file_atomically(folder / "results.json", json_of_all);
  print_text(options.json ? json_of_all : report::document_text(document, kBenchColumns));
  std::size_t good = 0;
  for (const bench::CaseResult& result : results) good += result.runs;
  if (!options.json)
    print_text("\ntables: {}, and a CSV file for each\n", (folder / "tables.md").string());
  return good > 0 ? 0 : 1;
}

}  // namespace

Command add_bench_run(CLI::App& root) {
  auto options = std::make_shared<BenchRunOptions>();
  CLI::App* app = root.add_subcommand(
      "run", "Train recipes in several ways and on several numbers of ranks; compare them.");
  app->footer(fmt::format(
      "Each recipe, variant, number of ranks and repeat is a run of `dstrain launch`; the "
      "variants\n"
      "take turns. A run that fails is a row of the tables. Ctrl-C ends the run under way, which "
      "--resume makes again.\n"
      "Variants: {}.\n"
      "Example: dstrain bench run recipes/vit/vit-huge_random_ddp.yaml --variants ddp,zero2,zero3 "
      "--ranks 1,2 --scaling weak",
      bench::variant_names()));
  add_recipes(*app, options->recipes, Words::yes)
      ->description(
          "Recipes: YAML files, or names of those that `dstrain recipe list` lists. Or the words "
          "of "
          "one job,\nMODEL STRATEGY RANKS BATCH EPOCHS, as launch takes them; EPOCHS count under "
          "--steps 0.");
  app->add_option("--variants", options->variants,
                  "What is compared, the first is the baseline. Default: recipe, as it is.")
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_option("--variant", options->own_variants,
                  "A further one: NAME=KEY=VALUE,KEY=VALUE. Repeatable.");
  add_overrides(*app, options->plan.overrides);
  CLI::Option* ranks = app->add_option("--ranks", options->ranks, "Numbers of ranks. Default: 1.");
  ranks->delimiter(',')->allow_extra_args(false)->check(number_in(1, 1048576));
  app->add_option("--scaling", options->scaling,
                  "weak: batch.global, which is for the first number of ranks, grows with it;\n"
                  "strong: it stays, and efficiency is shown; none: it stays. Default: none.")
      ->check(CLI::IsMember({"none", "weak", "strong"}));
  app->add_option("--repeat", options->plan.repeat, "Runs of each case. Default: 3.")
      ->check(number_in(1, 1000));
  app->add_option("--steps", options->plan.steps,
                  "Steps that count; 0: the recipe's own length. Default: 60.")
      ->check(number_in(0, 1 << 30));
  app->add_option("--warmup", options->plan.warmup,
                  "Steps before these, which do not count. Default: 20.")
      ->check(number_in(0, 1 << 20));
  app->add_option(
         "--table", options->tables,
         "seeds: losses, rates, memory, scaling, strategies; full: and intervals, verdicts,\n"
         "MFU, planned memory. Default: full.")
      ->check(CLI::IsMember({"seeds", "full"}));
  app->add_option("-o,--output", options->output,
                  "Folder of runs, bench.jsonl, tables.md and CSV files. Default: bench.");
  app->add_flag("--resume", options->resume,
                "Go on with the bench of that folder; where all runs are there, print it.");
  app->add_flag("--json", options->json, "Print one JSON object instead of tables at the end.");
  return {app, [options, ranks] {
            if (importing::is_short_form(options->recipes)) {
              if (ranks->count() > 0)
                throw Error(ErrorKind::usage, "the number of ranks is given twice",
                            "leave --ranks out");
              const importing::ShortForm form = read_words(options->recipes);
              options->recipes = {form.recipe.string()};
              options->ranks = {form.ranks};
              std::vector<std::string>& all = options->plan.overrides;
              all.insert(all.begin(), form.overrides.begin(), form.overrides.end());
            }
            for (const std::string& recipe : options->recipes) refuse_unknown_name(recipe);
            return bench_run(*options);
          }};
}

}  // namespace dstrain
