// The dstrain binary as far as launching goes, without recipes: controller and agent are the real
// ones, the ranks are whatever command stands after `--`.
//   fake_dstrain launch OUTPUT RANKS RESUME -- RANK_COMMAND...
//   fake_dstrain agent
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "launcher/agent.h"
#include "launcher/launch.h"
#include "launcher/standard_output.h"

namespace {

using namespace dstrain;

int agent() {
  launcher::fill_standard_streams();
  launcher::UniqueFd in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  launcher::UniqueFd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  return launcher::run_agent(std::move(in), std::move(out), "fake");
}

int launch(const std::vector<std::string>& words) {
  ::signal(SIGPIPE, SIG_IGN);
  launcher::fill_standard_streams();
  launcher::Interrupts interrupts({SIGINT, SIGTERM, SIGHUP});
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  launcher::StandardOutput output(STDOUT_FILENO);
  return launcher::launch(
      {.recipe_name = "fake",
       .files = [](int) { return std::vector<launcher::RunFile>{{"recipe.yaml", "fake: true\n"}}; },
       .output = words.at(0),
       .ranks = std::stoi(words.at(1)),
       .resume = words.at(2),
       .agent_command = {self, "agent"},
       .rank_command = {words.begin() + 4, words.end()},
       .build = "fake",
       .command_line = words},
      output.sink(), interrupts);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.at(0) == "agent") return agent();
    return launch({words.begin() + 1, words.end()});
  } catch (const dstrain::Error& error) {
    fmt::print(stderr, "error: {}\n  hint: {}\n", error.what(), error.hint());
    return dstrain::exit_code(error.kind());
  }
}
