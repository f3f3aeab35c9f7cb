#include "launcher/base/interrupts.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace dstrain::launcher {

Interrupts::Interrupts(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) {
    struct sigaction present{};
    ::sigaction(number, nullptr, &present);
    if (present.sa_handler != SIG_IGN || number == SIGCHLD) sigaddset(&set, number);
  }
  ::pthread_sigmask(SIG_BLOCK, &set, &previous_);
  fd_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) fail_system("make a signal descriptor");
}

Interrupts::~Interrupts() { ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }

int Interrupts::next() {
  signalfd_siginfo info{};
  const auto got = ::read(fd_.get(), &info, sizeof(info));
  return got == static_cast<ssize_t>(sizeof(info)) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace dstrain::launcher
