#pragma once

#include <csignal>

namespace dstrain::launcher {

/// Signals that asked the whole job to stop; lives longer than one start of it.
struct StopRequests {
  int count = 0;
  int last_signal = 0;
  /// The first came from a scheduler (SIGTERM, SIGUSR1), which wants the job to go on later.
  bool preempted = false;

  void add(int signal) {
    if (++count == 1) preempted = signal == SIGTERM || signal == SIGUSR1;
    last_signal = signal;
  }
};

}  // namespace dstrain::launcher
