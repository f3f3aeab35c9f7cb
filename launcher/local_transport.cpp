#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "engine/base/error.h"
#include "launcher/transport.h"

namespace dstrain::launcher {
namespace {

/// Runs between fork and exec in a process that may have had threads: system calls only.
[[noreturn]] void become_agent(int socket, char* const* argv) {
  ::setsid();
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // The socket is above 2 (see fill_standard_streams), so neither call overwrites it.
  ::dup2(socket, STDIN_FILENO);
  ::dup2(socket, STDOUT_FILENO);
  ::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
  ::execv(argv[0], argv);
  ::_exit(127);
}

}  // namespace

AgentConnection start_local_agent(const std::vector<std::string>& command) {
  DSTRAIN_CHECK(!command.empty(), "the agent needs a command");
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail_system("make a socketpair");
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  std::vector<std::string> words = command;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) fail_system("start the agent");
  if (pid == 0) become_agent(theirs.get(), argv.data());
  UniqueFd out(::fcntl(ours.get(), F_DUPFD_CLOEXEC, 3));
  if (!out) fail_system("duplicate a socket");
  return {pid, Channel(std::move(ours), std::move(out))};
}

}  // namespace dstrain::launcher
