#pragma once

#include <CLI/CLI.hpp>

#include "cmd/launch_job.h"
#include "launcher/job/jobset.h"
#include "launcher/job/submit.h"

namespace dstrain {

/// The options of `dstrain launch` that put the job into Slurm's queue instead of starting it, or
/// print what Slurm or Kubernetes would start.
struct SubmitRequest {
  bool slurm = false;
  std::string emit = {};   ///< "sbatch", "jobset": print it only
  std::string setup = {};  ///< file
  launcher::SubmitOptions options;
  launcher::JobsetOptions jobset = {};  ///< image, claim and resources
  const CLI::App* app = nullptr;        ///< of the launch, whose options the script repeats
};

/// --slurm, --nodes, --ranks-per-node, --gpus-per-node, --time, --partition, --account, --qos,
/// --sbatch, --setup, --emit, --image, --claim, --rdma-resource; all but the first and --emit need
/// one of these.
void add_submit_options(CLI::App& app, SubmitRequest& request);

/// Lets --emit sbatch stand for --slurm --dry-run. Error{usage} for options of Slurm or Kubernetes
/// without them.
void complete_submit_options(JobOptions& job, SubmitRequest& request);

/// Submits the job, or prints its batch script under --dry-run; returns the exit code. `job`: what
/// the script will start. Error{usage} for options that have no meaning in a queue.
[[nodiscard]] int submit_job(const JobOptions& job, const SubmitRequest& request);

/// --emit jobset: prints the manifest; returns the exit code. Error{usage} as above.
[[nodiscard]] int emit_jobset(const JobOptions& job, const SubmitRequest& request);

}  // namespace dstrain
