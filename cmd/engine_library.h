#pragma once

#include <string>
#include <vector>

namespace dstrain {

/// Loads libdstrain_engine.so with the LibTorch of this machine (torch_folder.h) and runs one of
/// its commands. Error{hosts} says where LibTorch was looked for and why it does not serve.
int run_engine_library(int argc, char** argv);

/// Whether it is there; a build of the launcher alone has none.
[[nodiscard]] bool has_engine_library();

/// What only models know, asked of the library: whether they have all that config.json asks for,
/// axes divide them, and GPUs take their sizes, which is a warning unless `gpus` or the recipe says
/// that ranks have some; `ranks` 0: the fewest that the recipe's axes need. False where it has said
/// on stderr what does not fit, true also without the library.
[[nodiscard]] bool recipe_fits(const std::string& recipe, const std::vector<std::string>& overrides,
                               int ranks = 0, bool gpus = false);

}  // namespace dstrain
