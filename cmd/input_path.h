#pragma once

#include <CLI/CLI.hpp>

namespace dstrain {

/// Checks of options that name what must be there. CLI11's own ones say "does not exist" of all
/// that they cannot look up.
[[nodiscard]] CLI::Validator input_file();
[[nodiscard]] CLI::Validator input_folder();

}  // namespace dstrain
