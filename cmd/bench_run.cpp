#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cmd/bench_preset.h"
#include "cmd/number_option.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/bench/run_tables.h"
#include "engine/bench/variants.h"

namespace dstrain {
namespace {

struct BenchRunOptions : BenchOptions {
  std::vector<std::string> variants;
  std::vector<std::string> own_variants;
  std::string scaling = "none";
  std::string tables = "full";
  bench::BenchPlan plan;
};

/// What compares variants.
BenchPreset run_preset(const BenchRunOptions& options) {
  std::vector<bench::Variant> variants;
  for (const std::string& name : options.variants) variants.push_back(bench::named_variant(name));
  for (const std::string& text : options.own_variants) variants.push_back(bench::own_variant(text));
  if (variants.empty()) variants.push_back(bench::named_variant("recipe"));
  std::vector<std::string> names;
  for (const bench::Variant& variant : variants) names.push_back(variant.name);
  require_once(names, "the list of variants");
  bench::BenchPlan plan = options.plan;
  plan.recipes = options.recipes;
  plan.overrides = options.overrides;
  plan.cases = bench::variant_cases(plan.recipes.size(), options.ranks, variants,
                                    options.scaling == "weak", options.scaling == "strong");
  const auto set = options.tables == "seeds" ? bench::TableSet::seeds : bench::TableSet::full;
  return {plan, [set](bench::BenchResults& results) { return run_pages(results.cases, set); }};
}

}  // namespace

Command add_bench_run(CLI::App& root) {
  auto options = std::make_shared<BenchRunOptions>();
  options->ranks = {1};
  options->resume = false;
  CLI::App* app = root.add_subcommand(
      "run", "Train recipes in several ways and on several numbers of ranks; compare them.");
  app->footer(fmt::format(
      "Each recipe, variant, number of ranks and repeat is a run of `dstrain launch`; the "
      "variants\n"
      "take turns. A run that fails is a row of the tables, and so is one that does not fit this "
      "machine, which is left out.\n"
      "Ctrl-C ends the run under way, which --resume makes again. Writes tables.md, a CSV file for "
      "each table, results.json.\n"
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
  add_list(*app, "--variants", options->variants,
           "What is compared, the first is the baseline. Default: recipe, as it is.");
  app->add_option("--variant", options->own_variants,
                  "A further one: NAME=KEY=VALUE,KEY=VALUE. Repeatable.");
  CLI::Option* ranks = add_ranks(*app, "--ranks", options->ranks, "Numbers of ranks. Default: 1.");
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
  app->add_flag("--resume", options->resume,
                "Go on with the bench of that folder: its runs of equal recipe and settings stay.");
  add_bench_options(*app, *options, "bench");
  return {app, [options, ranks] {
            if (importing::is_short_form(options->recipes)) {
              if (ranks->count() > 0)
                throw Error(ErrorKind::usage, "the number of ranks is given twice",
                            "leave --ranks out");
              const importing::ShortForm form = read_words(options->recipes);
              options->recipes = {form.recipe.string()};
              options->ranks = {form.ranks};
              std::vector<std::string>& all = options->overrides;
              all.insert(all.begin(), form.overrides.begin(), form.overrides.end());
            }
            for (const std::string& recipe : options->recipes) refuse_unknown_name(recipe);
            return run_bench(*options, [&] { return run_preset(*options); });
          }};
}

}  // namespace dstrain
