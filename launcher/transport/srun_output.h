#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/transport/host_problem.h"

namespace dstrain::launcher {

/// Parses srun's standard error (with --label, one task per node), node by node. srun's exit code
/// does not help: it is the largest of all tasks', or that of its own signals.
class SrunOutput {
 public:
  /// One line without its newline.
  void add(std::string_view line);

  /// How the node's task ended, as srun says it: "Exited with exit code 69", "Killed"; empty when
  /// it has not said so, as for exit code 0.
  [[nodiscard]] std::string ending(const std::string& node) const;
  /// The last thing that the node's task or Slurm's own process there has said, or empty.
  [[nodiscard]] std::string last_line(const std::string& node) const;
  /// Why the node has no agent, once that is known.
  [[nodiscard]] std::optional<HostProblem> problem(const std::string& node) const;

  /// srun gives up, and with it the tasks that it had already started.
  [[nodiscard]] bool aborted() const { return aborted_; }
  /// The last thing that srun said for itself, or empty.
  [[nodiscard]] const std::string& own_line() const { return own_line_; }

 private:
  struct Node {
    std::string ending;
    std::string launch_error;  ///< "Communication connection failure"
    std::string stepd_line;    ///< of Slurm's process on that node
    int task = -1;
    bool ended_by_srun = false;  ///< it says nothing about the node
  };
  void add_ending(std::string_view text);

  std::map<std::string, Node> nodes_;
  std::map<int, std::string> task_lines_;
  std::string own_line_;
  bool aborted_ = false;
};

/// "Exited with exit code 69" -> {69, 0}; "Killed" -> {0, SIGKILL}; exit code and signal.
struct SrunEnding {
  int exit_code = 0;
  int signal = 0;
};
[[nodiscard]] SrunEnding parse_srun_ending(std::string_view ending);

}  // namespace dstrain::launcher
