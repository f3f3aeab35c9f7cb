#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "engine/base/error.h"
#include "launcher/transport/transport.h"

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

class LocalTransport final : public Transport {
 public:
  LocalTransport(int node, std::vector<std::string> command)
      : node_(node), command_(std::move(command)) {
    DSTRAIN_CHECK(!command_.empty(), "the agent needs a command");
  }
  ~LocalTransport() override {
    if (pid_ > 0) (void)LocalTransport::end(node_, std::chrono::milliseconds(0));
  }
  LocalTransport(const LocalTransport&) = delete;
  LocalTransport& operator=(const LocalTransport&) = delete;

  void add_polls(std::vector<pollfd>& /*fds*/) const override {}
  [[nodiscard]] std::optional<Time> deadline() const override { return std::nullopt; }

  void advance(std::vector<AgentLink>& links, Time /*now*/) override {
    if (started_) return;
    started_ = true;
    links[static_cast<std::size_t>(node_)].channel.emplace(start());
  }

  AgentEnding end(int node, std::chrono::milliseconds limit) override {
    AgentEnding ending;
    if (node != node_ || pid_ <= 0) return ending;
    int status = 0;
    const auto deadline = std::chrono::steady_clock::now() + limit;
    pid_t ended = 0;
    while ((ended = ::waitpid(pid_, &status, WNOHANG)) == 0 &&
           std::chrono::steady_clock::now() < deadline) {
      ::poll(nullptr, 0, 1);
    }
    if (ended == 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
    }
    pid_ = -1;
    if (WIFSIGNALED(status)) ending.signal = WTERMSIG(status);
    if (WIFEXITED(status)) ending.exit_code = WEXITSTATUS(status);
    return ending;
  }

  void kill(int node) override {
    if (node == node_ && pid_ > 0) ::kill(pid_, SIGKILL);
  }

 private:
  Channel start() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
      fail_system("make a socketpair");
    UniqueFd ours(ends[0]);
    const UniqueFd theirs(ends[1]);
    std::vector<char*> argv;
    for (std::string& word : command_) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) fail_system("start the agent");
    if (pid_ == 0) become_agent(theirs.get(), argv.data());
    UniqueFd out(::fcntl(ours.get(), F_DUPFD_CLOEXEC, 3));
    if (!out) fail_system("duplicate a socket");
    return {std::move(ours), std::move(out)};
  }

  int node_;
  std::vector<std::string> command_;
  pid_t pid_ = -1;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<Transport> make_local_transport(int node, const std::vector<std::string>& command) {
  return std::make_unique<LocalTransport>(node, command);
}

}  // namespace dstrain::launcher
