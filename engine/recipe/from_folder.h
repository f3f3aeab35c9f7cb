#pragma once

#include <map>
#include <string>

#include "engine/recipe/diagnostics.h"
#include "engine/recipe/reader.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// Fills in what the recipe leaves open and the folder model.weights says: the model's family and
/// sizes, and how its images are prepared. Reports where the two differ. Returns the file that each
/// value was taken from, by the field's path. Nothing is taken from a folder that is not there: a
/// plan needs none.
[[nodiscard]] std::map<std::string, std::string, std::less<>> take_from_folder(
    Recipe& recipe, const YamlReader& reader, Diagnostics& diagnostics);

}  // namespace dstrain
