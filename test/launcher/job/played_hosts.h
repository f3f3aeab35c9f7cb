#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "launcher/job/controller.h"

namespace dstrain::launcher::test {

/// What befalls played hosts once their ranks have run for a while.
enum class Event {
  finish,   ///< all ranks end with 0
  killed,   ///< rank 29 dies of SIGKILL
  rack,     ///< hosts 32 to 63 are cut off at the same moment
  silent,   ///< host 5 answers no ping any more
  message,  ///< rank 0 has something to say, "now"; 5 s later all end with 0
};

struct Play {
  int hosts = 1024;
  int ranks_each = 8;
  Event event = Event::finish;
  std::chrono::milliseconds runs_for{1000};  ///< until the event
  std::chrono::milliseconds lease = lease_of(1024);
  int slow_rank = -1;  ///< whose own work takes 2.4 times as long; -1: none
};

/// How an attempt on played hosts went, and what it cost this process.
struct Played {
  Outcome outcome;
  std::string console;
  double longest_turn_s = 0;  ///< CPU time of the controller's loop from one turn to the next
  double cpu_s = 0;
  double to_running_s = 0;   ///< from the first hello to the word that all ranks start
  double after_event_s = 0;  ///< from the event to the end
  double grown_mib = 0;      ///< resident memory
};

/// The real controller, with agents that a child process plays over socketpairs: of more hosts than
/// a test has. `on_line` is called with each text for the console.
[[nodiscard]] Played play_job(const Play& play,
                              const std::function<void(std::string_view)>& on_line = {});

}  // namespace dstrain::launcher::test
