#pragma once

#include <string>

#include "engine/program/auto/auto_plan.h"

namespace dstrain {

/// What the report says beside the rows.
struct AutoTitle {
  std::string recipe;  ///< its name
  std::string model;   ///< as the recipe calls it
  int tokens = 0;      ///< of a sample; 0: images
  bool clips = false;  ///< of images
};

/// Tables for a person, ending in a newline.
[[nodiscard]] std::string auto_text(const AutoPlan& plan, const AutoTitle& title);
/// One JSON object with the same numbers in bytes and seconds; `rows[i].settings` is what row i
/// sets in a recipe.
[[nodiscard]] std::string auto_json(const AutoPlan& plan, const AutoTitle& title);
/// The sections of a recipe that the row sets, with a comment that says what for.
[[nodiscard]] std::string recipe_fragment(const AutoPlan& plan, const AutoRow& row,
                                          const AutoTitle& title);

}  // namespace dstrain
