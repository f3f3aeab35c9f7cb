#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace dstrain::launcher {

/// Processes whose parent is `parent` right now, zombies included.
[[nodiscard]] std::vector<pid_t> children_of(pid_t parent);
/// Whether /proc/PID/environ holds the entry NAME=VALUE.
[[nodiscard]] bool has_environment(pid_t pid, const std::string& entry);
/// "4711 (python3, state D)"; state Z is a zombie.
[[nodiscard]] std::string describe_process(pid_t pid);

/// Makes orphans of this process's descendants its own children (PR_SET_CHILD_SUBREAPER) until the
/// end of the scope, so that daemonised grandchildren of a rank can be found.
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int previous_ = 0;
};

/// Kills and reaps every child of this process, and theirs as they become ours, until none is left
/// or the time is over. Only for a process that has no other children: the agent. Adds what it
/// killed to `num_killed`, returns what stayed.
[[nodiscard]] std::vector<pid_t> kill_all_children(std::chrono::milliseconds limit,
                                                   int& num_killed);
/// After an agent has died under a Subreaper: waits for its ranks (their death signal is on its
/// way), then kills and reaps those new children of this process that carry `entry` in their
/// environment.
void kill_orphans(const std::vector<pid_t>& ranks, const std::string& entry,
                  std::chrono::milliseconds limit);

/// Kills every process of this machine that carries DSTRAIN_RUN_DIR=`run_directory` in its
/// environment, which only ranks and what they started do, and waits until they are gone. Returns
/// how many there were. For what an agent that was killed could not clean up itself.
[[nodiscard]] int sweep_run(const std::string& run_directory, std::chrono::milliseconds limit);

}  // namespace dstrain::launcher
