#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/import/batch_script.h"
#include "engine/import/import_state.h"
#include "engine/import/secrets.h"
#include "engine/recipe/text.h"

namespace dstrain::importing {
namespace {

std::string script_text(Import& import, const std::string& path) {
  std::string text = import.options().open(path);
  if (first_invalid_utf8(text) != std::string::npos || text.find('\0') != std::string::npos)
    throw RecipeError({{.file = shown(path, 200),
                        .message = "is no text in UTF-8",
                        .hint = "give the batch script itself"}});
  return text;
}

/// What Slurm puts into the environment of the script, as far as its lines say it plainly.
std::map<std::string, std::string> variables_of(const std::vector<BatchOption>& options) {
  constexpr std::pair<std::string_view, std::string_view> kVariables[] = {
      {"nodes", "SLURM_NNODES"},
      {"nodes", "SLURM_JOB_NUM_NODES"},
      {"ntasks", "SLURM_NTASKS"},
      {"ntasks", "SLURM_NPROCS"},
      {"ntasks_per_node", "SLURM_NTASKS_PER_NODE"},
      {"gpus_per_node", "SLURM_GPUS_PER_NODE"},
      {"gpus_per_node", "SLURM_GPUS_ON_NODE"},
      {"gpus", "SLURM_GPUS"},
      {"cpus_per_task", "SLURM_CPUS_PER_TASK"}};
  std::map<std::string, std::string> variables;
  for (const BatchOption& option : options) {
    for (const auto& [name, variable] : kVariables) {
      const bool digits = !option.value.empty() &&
                          option.value.find_first_not_of("0123456789") == std::string::npos;
      if (option.name == name && digits) variables[std::string(variable)] = option.value;
    }
  }
  return variables;
}

}  // namespace

std::string command_of_script(Import& import) {
  const ImportOptions& options = import.options();
  if (options.sbatch.empty() || !options.command.empty()) return {};
  const auto silent = [](int, const std::string&, const std::string&) {};  // read_sbatch reports
  const BatchScript script = read_batch_script(script_text(import, options.sbatch), silent);
  const std::vector<ScriptCommand> commands =
      launcher_commands(script.body, variables_of(batch_options(script.words, silent)));
  if (commands.empty()) return {};
  for (const ScriptCommand& other : commands) {
    if (other.text == commands[0].text) continue;
    import.error({.file = options.sbatch,
                  .line = other.first_line,
                  .column = 1,
                  .message = fmt::format("a second command that starts ranks; the first is in "
                                         "line {}",
                                         commands[0].first_line),
                  .hint = "give the one that counts by --command"});
    return {};
  }
  import.inside = commands[0];
  return import.inside.text;
}

void place_command(Import& import) {
  if (import.inside.first_line == 0) return;
  const std::string& path = import.options().sbatch;
  constexpr std::string_view kCommandLine = "--command";
  std::erase(import.result.sources, kCommandLine);
  for (Given& given : import.keys()) {
    if (given.file != kCommandLine) continue;
    given.file = path;
    given.place = {.line = import.inside.first_line, .column = 1};
  }
  for (Diagnostic& one : import.errors()) {
    if (one.file != kCommandLine) continue;
    one.file = path;
    one.line = import.inside.first_line;
    one.column = 1;
  }
}

void read_sbatch(Import& import, const std::string& path) {
  import.result.sources.push_back(path);
  const auto mistake = [&](int line, std::string message, std::string hint) {
    import.error({.file = path,
                  .line = line,
                  .column = 1,
                  .path = "#SBATCH",
                  .message = std::move(message),
                  .hint = std::move(hint)});
  };
  const BatchScript script = read_batch_script(script_text(import, path), mistake);
  for (const BatchOption& option : batch_options(script.words, mistake)) {
    const Place place = {.line = option.line, .column = 1};
    import.take({.table = Table::sbatch,
                 .path = option.name,
                 .file = path,
                 .place = place,
                 .node = {Node::Kind::scalar, place, option.value},
                 .value = shown(without_secrets(option.value))});
  }
  for (const BatchLine& line : script.body) {
    if (line.line >= import.inside.first_line && line.line <= import.inside.last_line) continue;
    std::string text = without_secrets(line.text);
    if (!line.why.empty()) text += fmt::format(" ({})", line.why);
    import.result.unread.push_back(fmt::format("{}:{}: {}", path, line.line, shown(text, 200)));
  }
}

}  // namespace dstrain::importing
