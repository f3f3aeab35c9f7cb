#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "launcher/job/launch.h"

namespace dstrain {

/// A job, as `launch` and `verify` start it.
struct JobOptions {
  std::string recipe;                  ///< file
  std::vector<std::string> overrides;  ///< "path.to.key=value"
  launcher::LaunchOptions launch;      ///< what the command line says; launch_job adds the rest
  bool search = false;       ///< for the fastest layout of the ranks, as `dstrain plan --auto`
  bool fit = false;          ///< take the fastest settings that fit where the recipe does not
  std::string machine = {};  ///< --machine of plan, for the ranks' memory; empty: this one
  std::vector<std::string> rank_arguments = {};  ///< of `dstrain engine`, before the recipe
};

/// The options that every command which starts a job has: recipe, --set, and those of
/// cmd/host_options.h.
void add_job_options(CLI::App& app, JobOptions& options);

/// Runs the job to its end and returns its exit code.
int launch_job(const JobOptions& options);

}  // namespace dstrain
