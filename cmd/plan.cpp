#include "cmd/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cmd/command.h"
#include "cmd/fit_proposals.h"
#include "cmd/hub_names.h"
#include "cmd/longest_sequence.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/planned_model.h"
#include "cmd/recipe_auto.h"
#include "cmd/recipe_plan.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/output.h"
#include "engine/program/program_text.h"
#include "engine/recipe/load.h"
#include "engine/recipe/phases.h"

namespace dstrain {
namespace {

int plan_auto(const PlanOptions& options) {
  if (options.recipes.size() > 1)
    throw Error(ErrorKind::usage,
                fmt::format("--auto searches the layout of one recipe, here are {}",
                            options.recipes.size()),
                "give one");
  const AutoSearch search =
      search_recipe(options.recipes.front(), options.overrides, options.machine,
                    {.ranks = options.ranks, .top = options.top});
  print_text(options.json ? auto_json(search.plan, search.title)
                          : auto_text(search.plan, search.title));
  if (!options.write.empty())
    write_file_atomically(options.write,
                          recipe_fragment(search.plan, search.plan.rows.front(), search.title));
  return 0;
}

int plan_longest(const PlanOptions& options) {
  if (options.recipes.size() > 1)
    throw Error(ErrorKind::usage,
                fmt::format("--longest plans one recipe, here are {}", options.recipes.size()),
                "give one");
  const std::string& recipe = options.recipes.front();
  bring_named(recipe, options.overrides, Bring::config);
  const bool on_cpu =
      load_recipe(recipe, options.overrides).recipe.parallel.backend == Backend::gloo;
  const Machine machine = plan_machine(options.machine, on_cpu);
  std::vector<Bytes> memories;
  for (const double gb : options.memory_gb) memories.push_back(std::llround(gb * 1e9));
  if (memories.empty()) memories = {machine.device_memory};
  std::ranges::sort(memories);
  const LongestTable table =
      longest_sequences(recipe, options.overrides, options.ranks, machine, memories);
  print_text(options.json ? longest_json(table) : longest_text(table));
  return 0;
}

struct PlanText {
  std::string text;
  bool fits = true;  ///< the memory of the machine
};

/// The plan of a recipe, or the plans of its phases.
PlanText plan_of(const std::string& recipe, const PlanOptions& options) {
  bring_named(recipe, options.overrides, Bring::config);
  LoadedRecipe loaded = load_recipe(recipe, options.overrides);
  for (const Diagnostic& warning : loaded.warnings) {
    print_error(format(warning) + "\n");
  }
  // Once for all phases, as it may write a note.
  loaded.recipe = with_known_sizes(std::move(loaded.recipe));
  const Machine machine =
      plan_machine(options.machine, loaded.recipe.parallel.backend == Backend::gloo);
  const bool cut = !loaded.recipe.phases.empty();
  std::vector<std::string> texts;
  bool fits = true;
  for (int phase = 0; phase < num_phases(loaded.recipe); ++phase) {
    const RecipePlan made = plan_recipe(loaded, options.ranks, machine, phase);
    fits = fits && made.report.fits();
    if (options.program) {
      std::vector<std::string> line;
      for (const Program& program : made.strategy.line)
        line.push_back(program_text(program, made.strategy.layout, made.cost));
      texts.push_back(fmt::format("{}", fmt::join(line, "\n")));
    } else {
      texts.push_back(options.json ? plan_json(made.report, made.strategy, made.cost)
                                   : plan_text(made.report, made.strategy, made.cost));
    }
    if (!options.json && cut)
      texts.back() = describe_phase(loaded.recipe, phase) + "\n" + texts.back();
  }
  if (!options.json) return {fmt::format("{}", fmt::join(texts, "\n")), fits};
  return {cut ? fmt::format("{{\"phases\": [{}]}}\n", fmt::join(texts, ", ")) : texts.front(),
          fits};
}

/// On stderr, so that --json stays one object.
void say_what_fits(const std::string& recipe, const PlanOptions& options) {
  const bool on_cpu =
      load_recipe(recipe, options.overrides).recipe.parallel.backend == Backend::gloo;
  const FitReport report =
      look_for_fit(recipe, options.overrides, options.ranks, plan_machine(options.machine, on_cpu));
  print_error("error: {}\n  hint: {}\n", misfit_text(report), proposals_text(report));
}

/// The words of a job in the place of recipes.
void take_plan_words(PlanOptions& options, bool ranks_given) {
  if (ranks_given)
    throw Error(ErrorKind::usage, "the number of ranks is given twice", "leave --ranks out");
  const importing::ShortForm form = read_words(options.recipes);
  options.recipes = {form.recipe.string()};
  options.overrides.insert(options.overrides.begin(), form.overrides.begin(), form.overrides.end());
  options.ranks = form.ranks;
  if (form.nodes > 0 && options.machine.per_node == 0) options.machine.per_node = form.per_node;
}

}  // namespace

int plan(const PlanOptions& options) {
  if (options.search) return plan_auto(options);
  if (options.longest) return plan_longest(options);
  const bool list = options.json && options.recipes.size() > 1;
  bool fits = true;
  for (std::size_t i = 0; i < options.recipes.size(); ++i) {
    if (list) print_text(i == 0 ? "[" : ", ");
    if (!options.json && i > 0) print_text("\n");
    const PlanText plan = plan_of(options.recipes[i], options);
    print_text(plan.text);
    fits = fits && plan.fits;
    if (!plan.fits) say_what_fits(options.recipes[i], options);
  }
  if (list) print_text("]\n");
  return fits ? 0 : exit_code(ErrorKind::usage);
}

Command add_plan(CLI::App& root) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* app = root.add_subcommand(
      "plan", "Predict memory, bytes and time of one training step, without a GPU.");
  app->footer(
      "With --auto: which layout of the ranks is fastest, of the axes of `parallel`, ZeRO stages "
      "and\n"
      "micro-batches; batch.global stays as the recipe says. Rows by predicted time, then why the "
      "others are slower or do\n"
      "not fit.\n"
      "Exit code 64: the step does not fit the memory of the machine; stderr then lists what "
      "does.\n"
      "Examples:\n"
      "  dstrain plan recipes/quickstart.yaml --ranks 4096\n"
      "  dstrain plan vit-huge zero3 2 8 32 10\n"
      "  dstrain plan recipes/qwen/qwen2.5-3b_metamathqa_lora.yaml --longest --memory 12,24 "
      "--machine rtx4090\n"
      "  dstrain plan recipes/qwen/qwen2.5-3b_metamathqa.yaml --auto --ranks 8 --write "
      "layout.yaml");
  add_recipes(*app, options->recipes, Words::yes)
      ->description(
          "Recipes: YAML files, or names of those that `dstrain recipe list` lists. Or the words "
          "of one job, MODEL STRATEGY\nRANKS BATCH EPOCHS or MODEL STRATEGY NODES PER_NODE BATCH "
          "EPOCHS, as launch takes them.");
  CLI::Option* ranks =
      app->add_option("--ranks", options->ranks, "Ranks in the world. Default: 1.");
  ranks->check(number_in(1, 1 << 20));
  add_overrides(*app, options->overrides);
  app->add_option(
      "--machine", options->machine.name,
      "Rates and memory of one rank: h200, h100 and cpu, which were measured; a card by its "
      "datasheet, estimated:\n"
      "t4, rtx3090, rtx4090, rtx5090, a10, a30, a40, a100-40, a100-80, a6000, l4, l40, l40s, "
      "h20, b200 and others, which a\n"
      "wrong name lists; or a part of the name of a device that doctor --measure has measured, as "
      "in A100. Default: this\nmachine's device if measured or in the table, else cpu under "
      "gloo, and h200 where there is no GPU.");
  app->add_option("--per-node", options->machine.per_node,
                  "Ranks of a node. Default: the machine's, 8 for GPUs.")
      ->check(number_in(1, 1024));
  app->add_option("--network", options->machine.network_gb_per_s,
                  "GB/s that all ranks of a node together send to other nodes, and receive. "
                  "Default: the machine's, 360\n"
                  "for GPUs (eight adapters of 400 Gbit/s).")
      ->check(positive_number());
  CLI::Option* json =
      app->add_flag("--json", options->json,
                    "Print one JSON object instead of tables, of several recipes a list of them.");
  app->add_flag("--program", options->program,
                "Print the step as the ranks run it, action by action, in place of tables: what "
                "each does on which buffers, and\nwhat it waits for. Repetitions for other blocks "
                "and micro-batches are counted.")
      ->excludes(json);
  CLI::Option* search = app->add_flag(
      "--auto", options->search, "Search the fastest layout of the ranks that fits their memory.");
  CLI::Option* longest =
      app->add_flag("--longest", options->longest,
                    "Find the longest data.sequence that fits, with each way to save memory put "
                    "on the ones before.")
          ->excludes(search);
  app->add_option(
         "--memory", options->memory_gb,
         "Memories of devices in GB (1e9 bytes) to find it for: 8,12,16,24,48,80. Default: "
         "the machine's.")
      ->needs(longest)
      ->delimiter(',')
      ->check(positive_number());
  app->add_option("--top", options->top, "Layouts to show. Default: 10.")
      ->needs(search)
      ->check(number_in(1, 100));
  app->add_option("--write", options->write,
                  "File for the first row, as the sections of a recipe that it sets.")
      ->needs(search);
  return {app, [options, ranks] {
            if (importing::is_short_form(options->recipes))
              take_plan_words(*options, ranks->count() > 0);
            for (const std::string& recipe : options->recipes) refuse_unknown_name(recipe);
            return plan(*options);
          }};
}

}  // namespace dstrain
