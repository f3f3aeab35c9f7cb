#pragma once

#include <vector>

#include "engine/recipe/load.h"

namespace dstrain {

/// What a run of the recipe reads and this machine does not have: data, weights, tokenizer,
/// adapter. All of them at once, each an error of its key. Looks only whether things are there; the
/// ranks read what is in them.
[[nodiscard]] std::vector<Diagnostic> missing_files(const LoadedRecipe& loaded);

/// Looks before any rank starts. Where the ranks run on this machine, Error{data} says what is
/// missing; where they run on others, which may have files of their own, or under --dry-run, stderr
/// says it. A run that is resumed has its weights in its checkpoint.
struct FilesLook {
  bool ranks_here = true;
  bool resumes = false;
};
void look_for_files(const LoadedRecipe& loaded, const FilesLook& look);

}  // namespace dstrain
