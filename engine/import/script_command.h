#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/import/batch_script.h"

namespace dstrain::importing {

/// A launcher's command inside a batch script, its words quoted for a shell.
struct ScriptCommand {
  std::string text;
  int first_line = 0, last_line = 0;  ///< 0: not of a script
};

/// The commands of deepspeed, torchrun and accelerate launch in the lines of a script, also behind
/// srun and inside `bash -c '...'`. Variables that the script sets plainly before and those of
/// `variables` are filled in; others stay as they are. Nothing is run.
[[nodiscard]] std::vector<ScriptCommand> launcher_commands(
    const std::vector<BatchLine>& body, std::map<std::string, std::string> variables);

}  // namespace dstrain::importing
