#pragma once

#include <CLI/CLI.hpp>

#include "cmd/launch_job.h"
#include "launcher/job/submit.h"

namespace dstrain {

/// The options of `dstrain launch` that put the job into Slurm's queue instead of starting it.
struct SubmitRequest {
  bool slurm = false;
  launcher::SubmitOptions options;
  const CLI::App* app = nullptr;  ///< of the launch, whose options the script repeats
};

/// --slurm, --nodes, --ranks-per-node, --gpus-per-node, --time, --partition, --account, --qos,
/// --sbatch; all but the first need the first.
void add_submit_options(CLI::App& app, SubmitRequest& request);

/// Submits the job, or prints its batch script under --dry-run; returns the exit code. `job`: what
/// the script will start. Error{usage} for options that have no meaning in a queue.
[[nodiscard]] int submit_job(const JobOptions& job, const SubmitRequest& request);

}  // namespace dstrain
