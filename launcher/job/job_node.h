#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hosts/placement.h"
#include "launcher/job/clock_offset.h"
#include "launcher/protocol/channel.h"
#include "launcher/protocol/protocol.h"
#include "launcher/transport/host_problem.h"

namespace dstrain::launcher {

/// One node of a job as the controller sees it, from the call for its agent to the agent's end.
struct JobNode {
  enum class State { connecting, greeting, greeted, preparing, ready, running, done, gone };
  using Clock = std::chrono::steady_clock;

  std::size_t index = 0;  ///< among the job's nodes
  NodePlacement placement;
  PrepareJob job;
  State state = State::connecting;
  std::optional<Channel> channel;
  Hello hello;
  Clock::time_point since = Clock::now();  ///< of the present state, until the node runs
  Clock::time_point last_heard = since;
  ClockOffset clock;
  std::vector<pid_t> pids;
  std::optional<AgentDone> done;
  std::optional<FaultMessage> fault;
  std::optional<HostProblem> problem;
  std::string lost;  ///< how it was lost while its ranks ran; empty: it was not
  int lost_signal = 0;
  bool released = false;  ///< nothing of it is left on this machine

  [[nodiscard]] bool is_local() const { return placement.host.reach == Reach::local; }
  [[nodiscard]] const std::string& name() const { return placement.host.name; }

  void enter(State next) {
    state = next;
    since = last_heard = Clock::now();
  }
};

}  // namespace dstrain::launcher
