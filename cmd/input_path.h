#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace dstrain {

/// Checks of options that name what must be there. CLI11's own ones say "does not exist" of all
/// that they cannot look up.
[[nodiscard]] CLI::Validator input_file();
[[nodiscard]] CLI::Validator input_folder();

/// Check of an option whose empty text would mean something else: an unset variable of a shell must
/// not turn into a job on this machine alone, a new run, or a training.
[[nodiscard]] CLI::Validator not_empty();

/// Error{usage} where the file `output` of `option` is one of `inputs`, by whatever name: it would
/// be lost. Empty texts are no files.
void refuse_own_input(const std::string& option, const std::string& output,
                      const std::vector<std::string>& inputs);

}  // namespace dstrain
