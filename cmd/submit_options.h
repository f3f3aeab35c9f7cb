#pragma once

#include <CLI/CLI.hpp>

#include "cmd/launch_job.h"
#include "launcher/job/submit.h"

namespace dstrain {

/// The options of `dstrain launch` that put the job into Slurm's queue instead of starting it.
struct SubmitRequest {
  bool slurm = false;
  std::string emit = {};   ///< "sbatch": print the script only
  std::string setup = {};  ///< file
  launcher::SubmitOptions options;
  const CLI::App* app = nullptr;  ///< of the launch, whose options the script repeats
};

/// --slurm, --nodes, --ranks-per-node, --gpus-per-node, --time, --partition, --account, --qos,
/// --sbatch, --setup, --emit; all but the first and the last need one of these.
void add_submit_options(CLI::App& app, SubmitRequest& request);

/// Lets --emit stand for --slurm --dry-run. Error{usage} for options of Slurm without either.
void complete_submit_options(JobOptions& job, SubmitRequest& request);

/// Submits the job, or prints its batch script under --dry-run; returns the exit code. `job`: what
/// the script will start. Error{usage} for options that have no meaning in a queue.
[[nodiscard]] int submit_job(const JobOptions& job, const SubmitRequest& request);

}  // namespace dstrain
