#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace dstrain {

/// A job on this machine, as `launch` and `verify` start it.
struct JobOptions {
  std::string recipe;                  ///< file
  std::vector<std::string> overrides;  ///< "path.to.key=value"
  int ranks = 0;                       ///< 0: one per visible GPU, or 1 on a machine without
  std::string resume = "never";        ///< never, auto, or a run or checkpoint directory
  bool dry_run = false;
  std::vector<std::string> rank_arguments = {};  ///< of `dstrain engine`, before the recipe
};

/// The options that every command which starts a job has: recipe, --set and --ranks.
void add_job_options(CLI::App& app, JobOptions& options);

/// Runs the job to its end and returns its exit code.
int launch_job(const JobOptions& options);

}  // namespace dstrain
