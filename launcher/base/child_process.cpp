#include "launcher/base/child_process.h"

#include <linux/close_range.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "launcher/base/fd.h"

namespace dstrain::launcher {
namespace {

void say(const char* text) {
  // A message that cannot be written has no other place to go.
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

[[noreturn]] void become(char* const* argv, ChildProcess::Streams streams, pid_t parent) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above; then nothing would end this process.
  if (::getppid() != parent) ::_exit(255);
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::dup2(streams.in, STDIN_FILENO);
  ::dup2(streams.out, STDOUT_FILENO);
  ::dup2(streams.error, STDERR_FILENO);
  ::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
  ::execvp(argv[0], argv);
  say("dstrain: cannot start ");
  say(argv[0]);
  say("\n");
  ::_exit(255);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, Streams streams) {
  DSTRAIN_CHECK(!command.empty(), "a child process needs a command");
  DSTRAIN_CHECK(streams.in > 2 && streams.out > 2 && streams.error > 2,
                "descriptors of a child must be above those that they become");
  std::vector<std::string> words = command;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) fail_system("start " + command.front());
  if (pid_ == 0) become(argv.data(), streams, parent);
}

ChildProcess::~ChildProcess() { end(std::chrono::milliseconds(0)); }

void ChildProcess::swap(ChildProcess& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(exit_code_, other.exit_code_);
  std::swap(signal_, other.signal_);
}

bool ChildProcess::ended() {
  if (pid_ <= 0) return true;
  siginfo_t info{};
  // WNOWAIT: while it is not reaped, its process group cannot be another's.
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == 0)
    return false;
  reap();
  return true;
}

void ChildProcess::end(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!ended()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      kill();
      reap();
      return;
    }
    ::poll(nullptr, 0, 1);
  }
}

/// Its helpers (a ProxyCommand) share its group and go with it.
void ChildProcess::reap() {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 &&
         errno == EINTR) {
  }
  ::kill(-pid_, SIGKILL);
  int status = 0;
  const pid_t got = ::waitpid(pid_, &status, 0);
  pid_ = -1;
  if (got > 0 && WIFSIGNALED(status)) signal_ = WTERMSIG(status);
  if (got > 0 && WIFEXITED(status)) exit_code_ = WEXITSTATUS(status);
}

void ChildProcess::send(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

void ChildProcess::kill() const {
  if (pid_ <= 0) return;
  // Between fork and setsid it has no group of its own yet.
  ::kill(pid_, SIGKILL);
  ::kill(-pid_, SIGKILL);
}

}  // namespace dstrain::launcher
