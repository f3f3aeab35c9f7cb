#pragma once

#include <string>

#include "engine/program/layout.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// For people: what the layout does of each form of ZeRO++ that the recipe asks for, by the names
/// of the paper (qwZ, hpZ, qgZ; arXiv:2306.10209), or why it does nothing. Empty where the recipe
/// asks for none.
[[nodiscard]] std::string wires_text(const Recipe& recipe, const Layout& layout);

}  // namespace dstrain
