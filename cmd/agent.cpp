#include "launcher/agent.h"

#include <fcntl.h>
#include <unistd.h>

#include "cmd/command.h"
#include "cmd/version.h"

namespace dstrain {

Command add_agent(CLI::App& root) {
  CLI::App* app = root.add_subcommand(
      "agent", "Start and watch the ranks of one node; started by `dstrain launch`, not by hand.");
  app->group("");  // hidden from --help
  return {app, [] {
            using launcher::UniqueFd;
            launcher::fill_standard_streams();
            UniqueFd in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
            UniqueFd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
            // Whatever prints by accident must not write into the channel.
            ::dup2(STDERR_FILENO, STDOUT_FILENO);
            const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
            ::dup2(null.get(), STDIN_FILENO);
            return launcher::run_agent(std::move(in), std::move(out), kVersion);
          }};
}

}  // namespace dstrain
