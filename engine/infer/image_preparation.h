#pragma once

#include <filesystem>
#include <string>

#include "engine/data/images/image_resize.h"
#include "engine/infer/finished_model.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// How the file of an image becomes what a model takes.
struct ImagePreparation {
  SquareResize resize;
  NormalizeConfig normalize;
  std::string what;  ///< for people: "prepared as the run's evaluation does"
};

/// A run's is that of its evaluation; a `folder`'s what its processor's file says (see
/// read_image_processor), else what is usual for the family of the model. Error{data} names the key
/// of that file that dstrain does not follow.
[[nodiscard]] ImagePreparation preparation_of(const FinishedModel& model,
                                              const std::filesystem::path& folder);

}  // namespace dstrain
