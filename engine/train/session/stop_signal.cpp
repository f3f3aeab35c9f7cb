#include "engine/train/session/stop_signal.h"

#include <unistd.h>

#include <csignal>
#include <ctime>
#include <initializer_list>
#include <string_view>

namespace dstrain {
namespace {

// A signal can be told in no other way than through a global.
volatile std::sig_atomic_t requested = 0;
volatile std::sig_atomic_t requested_at_s = 0;
volatile std::sig_atomic_t answers = 0;

constexpr int kSameRequestS = 3;
constexpr std::string_view kAnswer =
    "asked to stop: finishing this step, saving, ending; once more ends at once\n";

/// A scheduler signals a whole job, ranks and agents, and the agents pass it on: what comes within
/// moments of the first is the same request. A later one ends the process.
void request_stop(int number) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto now_s = static_cast<std::sig_atomic_t>(now.tv_sec);
  if (requested == 0) {
    requested = 1;
    requested_at_s = now_s;
    // No reader of it matters to training.
    if (answers != 0) (void)!::write(STDERR_FILENO, kAnswer.data(), kAnswer.size());
  } else if (now_s - requested_at_s > kSameRequestS) {
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
}

}  // namespace

void install_stop_handler(bool speaks) {
  answers = speaks ? 1 : 0;
  struct sigaction action {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) ::sigaction(number, &action, nullptr);
}

bool stop_requested() { return requested != 0; }

}  // namespace dstrain
