#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace dstrain::launcher {

/// A job for Slurm's queue.
struct SubmitOptions {
  std::string recipe_name;
  std::string recipe;                              ///< resolved text, frozen beside the script
  std::vector<std::string> recipe_variables = {};  ///< environment variables that it was made with
  std::filesystem::path output = "runs";
  std::filesystem::path program;  ///< of this process; its tree is copied
  std::filesystem::path working_directory;
  int nodes = 1;
  int ranks_per_node = 0;  ///< on the CPU; 0: one, or one per GPU
  int gpus_per_node = 0;
  std::string gpu_type = {};  ///< as Slurm calls it; empty: any
  std::string time = {};      ///< as sbatch takes it; empty: the partition's
  std::string partition = {};
  std::string account = {};
  std::string qos = {};
  std::vector<std::string> sbatch = {};  ///< further arguments of sbatch
  std::vector<std::string> launch = {};  ///< further arguments of `dstrain launch`
  /// What the run starts from, a run directory or a checkpoint; from then on its own newest one.
  std::string resume = "auto";
  std::string setup = {};  ///< lines of bash before the launch: module load ...
};

/// The batch script of a job whose files lie in `folder` (absolute): options of Slurm, the lines of
/// `setup`, then `dstrain launch` with the frozen program and recipe. USR1, 120 s before the time
/// limit, and TERM reach it; its exit code 75 puts the job back into the queue, every other ends
/// it. Error{usage} for text that a line of it cannot hold.
[[nodiscard]] std::string batch_script(const SubmitOptions& options,
                                       const std::filesystem::path& folder);
/// The same as a file of its own, to be submitted from anywhere: the recipe stands in it, the
/// program is run where it lies, and Slurm's output goes to the working directory.
[[nodiscard]] std::string printed_script(const SubmitOptions& options);
/// Error{usage} when a secret of the environment or of --env stands in the script or the recipe.
void refuse_secrets(const SubmitOptions& options);

/// A text that is to be printed or written for others.
struct PublicText {
  const std::string& text;
  const char* what;                         ///< "the manifest"
  std::span<const std::string> words = {};  ///< options in it; --env NAME=VALUE is looked at
  std::span<const std::string> recipe_variables = {};
};
/// The same of any text; `hint` says how a secret gets there otherwise.
void refuse_secrets_of(const PublicText& text, const std::string& hint);

struct Submission {
  std::string job;               ///< Slurm's number
  std::filesystem::path folder;  ///< recipe, program, job.sbatch and slurm-<job>.out
  std::filesystem::path run;     ///< run directory, once the job has started
};
/// Makes `<output>/<recipe>-slurm-<utc time>-<id>` with recipe, script and a copy of our program,
/// so that what changes while the job waits changes nothing, and hands the script to sbatch.
/// Error{hosts} with sbatch's own words when it refuses.
[[nodiscard]] Submission submit(const SubmitOptions& options);

}  // namespace dstrain::launcher
