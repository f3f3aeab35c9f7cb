// The dstrain binary as far as launching goes, without recipes: controller, agent and the options
// about hosts are the real ones, the ranks are whatever command stands after `--`.
//   fake_dstrain launch --output DIR [options of cmd/host_options.h] -- RANK_COMMAND...
//   fake_dstrain agent [--over-ssh | --dial]
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "cmd/host_options.h"
#include "engine/base/error.h"
#include "launcher/base/standard_output.h"
#include "launcher/job/agent.h"
#include "launcher/job/launch.h"
#include "launcher/transport/dial.h"
#include "launcher/transport/joined.h"

namespace {

using namespace dstrain;

/// Another version where FAKE_BUILD says so.
std::string build() {
  const char* text = std::getenv("FAKE_BUILD");
  return text != nullptr ? text : "fake";
}

int agent(bool over_ssh, bool dial) {
  launcher::fill_standard_streams();
  if (dial) return launcher::run_dialled_agent(launcher::dial_as_slurm_node(STDIN_FILENO), build());
  launcher::UniqueFd in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  launcher::UniqueFd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  return launcher::run_agent(
      std::move(in), std::move(out),
      over_ssh ? launcher::identity_over_ssh(build()) : launcher::AgentIdentity{build(), {}, {}});
}

int launch(launcher::LaunchOptions options, std::vector<std::string> command) {
  ::signal(SIGPIPE, SIG_IGN);
  launcher::fill_standard_streams();
  const auto joined = launcher::join(
      launcher::probe_machine(), ::getenv,
      [](launcher::UniqueFd socket) {
        return launcher::run_dialled_agent(std::move(socket), build());
      },
      [](const std::string& line) { fmt::print(stderr, "{}\n", line); });
  if (joined && joined->exit_code) return *joined->exit_code;
  if (joined) options.joined = joined->controller;
  launcher::Interrupts interrupts({SIGINT, SIGTERM, SIGHUP, SIGUSR1});
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  launcher::StandardOutput output(STDOUT_FILENO);
  options.recipe_name = "fake";
  // A world that is not a multiple of FAKE_WORLD_MULTIPLE does not fit this "recipe".
  options.files = [](int world_size) {
    const char* multiple = std::getenv("FAKE_WORLD_MULTIPLE");
    if (multiple != nullptr && world_size % std::atoi(multiple) != 0) {
      throw Error(ErrorKind::usage,
                  fmt::format("{} ranks are no multiple of {}", world_size, multiple));
    }
    return std::vector<launcher::RunFile>{{"recipe.yaml", "fake: true\n"}};
  };
  options.agent_command = {self, "agent"};
  options.rank_command = std::move(command);
  options.build = build();
  return launcher::launch(options, output.sink(), interrupts);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("fake_dstrain");
  CLI::App* agent_app = app.add_subcommand("agent");
  bool over_ssh = false;
  agent_app->add_flag("--over-ssh", over_ssh);
  bool dial = false;
  agent_app->add_flag("--dial", dial);
  CLI::App* launch_app = app.add_subcommand("launch");
  launcher::LaunchOptions options;
  launch_app->add_option("--output", options.output)->required();
  add_host_options(*launch_app, options);
  add_run_options(*launch_app, options);
  options.command_line.assign(argv, argv + argc);
  std::vector<std::string> words(argv + 1, argv + argc);
  const auto dashes = std::find(words.begin(), words.end(), "--");
  std::vector<std::string> command(dashes == words.end() ? dashes : dashes + 1, words.end());
  words.erase(dashes, words.end());
  std::reverse(words.begin(), words.end());  // as CLI11 takes a vector
  try {
    app.parse(words);
    return *agent_app ? agent(over_ssh, dial) : launch(options, command);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return exit_code(ErrorKind::usage);
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n  hint: {}\n", error.what(), error.hint());
    return exit_code(error.kind());
  }
}
