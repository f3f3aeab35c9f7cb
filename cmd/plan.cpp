#include "cmd/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "cmd/fit_proposals.h"
#include "cmd/hub_names.h"
#include "cmd/longest_sequence.h"
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
  const Machine machine = plan_machine(options.machine, on_cpu, options.ranks);
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
      plan_machine(options.machine, loaded.recipe.parallel.backend == Backend::gloo, options.ranks);
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
  const FitReport report = look_for_fit(recipe, options.overrides, options.ranks,
                                        plan_machine(options.machine, on_cpu, options.ranks));
  print_error("error: {}\n  hint: {}\n", misfit_text(report), proposals_text(report));
}

/// The words of a job in the place of recipes.
void take_plan_words(PlanOptions& options) {
  if (options.ranks > 0)
    throw Error(ErrorKind::usage, "the number of ranks is given twice", "leave --ranks out");
  const importing::ShortForm form = read_words(options.recipes);
  options.recipes = {form.recipe.string()};
  options.overrides.insert(options.overrides.begin(), form.overrides.begin(), form.overrides.end());
  options.ranks = form.ranks;
  if (form.nodes > 0 && options.machine.per_node == 0) options.machine.per_node = form.per_node;
}

}  // namespace

int plan(PlanOptions& options) {
  if (importing::is_short_form(options.recipes)) take_plan_words(options);
  options.ranks = std::max(options.ranks, 1);
  for (const std::string& recipe : options.recipes) refuse_unknown_name(recipe);
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

}  // namespace dstrain
