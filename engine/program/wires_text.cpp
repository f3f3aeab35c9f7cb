#include "engine/program/wires_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "engine/recipe/choices.h"

namespace dstrain {
namespace {

bool any_group(const Layout& layout, bool (Layout::*codes)(int group) const) {
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g) {
    if ((layout.*codes)(g)) return true;
  }
  return false;
}

}  // namespace

std::string wires_text(const Recipe& recipe, const Layout& layout) {
  const bool gathers = recipe.precision.gather != GatherType::compute;
  const bool reduces =
      recipe.precision.reduce == ReduceType::int8 || recipe.precision.reduce == ReduceType::int4;
  const int second = recipe.parallel.zero.second_shard;
  if (!gathers && !reduces && second <= 1) return {};
  const int ranks = layout.degrees.shard;
  if (ranks == 1) return "without effect: every rank holds all states";
  std::vector<std::string> forms;
  if (gathers) {
    const auto format = spelling(recipe.precision.gather);
    forms.push_back(
        any_group(layout, &Layout::gathers_codes)
            ? fmt::format("parameters travel as {} (qwZ)", format)
            : fmt::format("no parameters travel as {} (qwZ): none are matrices", format));
  }
  if (second > 1) {
    forms.push_back(
        second < ranks
            ? fmt::format("backward gathers parameters among {} ranks (hpZ)", second)
            : fmt::format("backward gathers parameters among the same {} ranks as forward (hpZ has "
                          "no effect)",
                          ranks));
  }
  if (reduces) {
    const auto format = spelling(recipe.precision.reduce);
    if (second >= ranks)
      forms.push_back(
          fmt::format("gradients travel as they are (qgZ has no effect): codes go between groups "
                      "of parallel.zero.second_shard: {} ranks, and {} share the states; with "
                      "second_shard: 0 they go between all",
                      second, ranks));
    else if (!any_group(layout, &Layout::reduces_codes))
      forms.push_back(fmt::format("no gradients travel as {} (qgZ)", format));
    else if (second > 1)
      forms.push_back(
          fmt::format("gradients travel as {} between groups of {} ranks (qgZ)", format, second));
    else
      forms.push_back(
          fmt::format("gradients travel as {} between all {} ranks (qgZ)", format, ranks));
  }
  return fmt::format("{}", fmt::join(forms, "; "));
}

}  // namespace dstrain
