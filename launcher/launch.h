#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "launcher/console.h"
#include "launcher/interrupts.h"

namespace dstrain::launcher {

/// A file that the run directory holds from the start.
struct RunFile {
  std::string name;
  std::string content;
};

struct LaunchOptions {
  std::string recipe_name;  ///< first part of the run directory's name
  /// Called once the number of ranks is known and before anything is made or started. Returns
  /// recipe.yaml and whatever else belongs beside it; throws Error{usage} when the recipe does not
  /// fit so many ranks.
  std::function<std::vector<RunFile>(int world_size)> files;
  std::filesystem::path output = "runs";  ///< parent of the run directory
  int ranks = 0;                          ///< 0: one per visible GPU, or one on a machine without
  bool cpu_ranks = false;                 ///< the recipe asks for the CPU whatever GPUs there are
  std::string resume = "never";           ///< never, auto, or a run or checkpoint directory
  bool dry_run = false;
  std::vector<std::string> agent_command;  ///< program (a path) and arguments of an agent
  /// Program and first arguments of a rank; "<run directory>/recipe.yaml" and perhaps "--resume
  /// DIR" follow.
  std::vector<std::string> rank_command;
  std::string build;                      ///< program and version, for environment.json
  std::vector<std::string> command_line;  ///< as typed, for environment.json
};

/// Runs one job on this machine to its end: run directory, agent, ranks, failure report. Returns
/// the exit code of the job: 0, the failed rank's own code, 128 + signal, or 75 when the agent was
/// lost. A first SIGINT, SIGTERM or SIGHUP of `interrupts` asks the ranks to finish their step,
/// save and end; a second one ends them now. Throws Error for what is wrong before a rank runs.
/// Becomes the subreaper of its descendants while it runs.
[[nodiscard]] int launch(const LaunchOptions& options, const ConsoleSink& sink,
                         Interrupts& interrupts);

}  // namespace dstrain::launcher
