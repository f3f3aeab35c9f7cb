#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace dstrain {

/// What a shell may complete after each command: a line "COMMAND<tab>WORD ..." for `app` (an empty
/// COMMAND) and all below it, hidden ones left out; "checkpoint export" is a COMMAND.
[[nodiscard]] std::string completion_words(const CLI::App& app);

}  // namespace dstrain
