#include "launcher/job/agent.h"

#include <fcntl.h>
#include <unistd.h>

#include <memory>

#include "cmd/command.h"
#include "cmd/version.h"
#include "launcher/transport/dial.h"

namespace dstrain {
namespace {

struct AgentOptions {
  bool over_ssh = false;
  bool dial = false;
};

int agent(const AgentOptions& options) {
  using launcher::UniqueFd;
  launcher::fill_standard_streams();
  // Whatever prints by accident must not write into the channel.
  const auto leave_streams = [] {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ::dup2(null.get(), STDIN_FILENO);
  };
  if (options.dial) {
    UniqueFd socket = launcher::dial_as_slurm_node(STDIN_FILENO);
    leave_streams();
    return launcher::run_dialled_agent(std::move(socket), kVersion);
  }
  UniqueFd in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  UniqueFd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  leave_streams();
  return launcher::run_agent(std::move(in), std::move(out),
                             options.over_ssh ? launcher::identity_over_ssh(kVersion)
                                              : launcher::AgentIdentity{.build = kVersion});
}

}  // namespace

Command add_agent(CLI::App& root) {
  auto options = std::make_shared<AgentOptions>();
  CLI::App* app = root.add_subcommand(
      "agent", "Start and watch the ranks of one node; started by `dstrain launch`, not by hand.");
  app->group("");  // hidden from --help
  CLI::Option* over_ssh =
      app->add_flag("--over-ssh", options->over_ssh, "Tell the addresses of the ssh connection.");
  app->add_flag("--dial", options->dial,
                "Read the controller's address from standard input and connect to it (srun). "
                "Default: standard input and output are the connection.")
      ->excludes(over_ssh);
  return {app, [options] { return agent(*options); }};
}

}  // namespace dstrain
