#include "cmd/host_options.h"

#include <algorithm>
#include <string>

#include "cmd/env_file.h"
#include "cmd/input_path.h"
#include "cmd/number_option.h"
#include "engine/base/error.h"

namespace dstrain {

void add_host_options(CLI::App& app, launcher::LaunchOptions& options) {
  launcher::HostRequest& request = options.request;
  app.add_option(
         "--ranks", request.ranks,
         "Number of ranks. Default: every slot of the hosts; on this machine one per visible GPU, "
         "or 1 without.")
      ->check(number_in(1, 1 << 20));
  CLI::Option* hosts =
      app.add_option("--hosts", request.hosts,
                     "Hosts and their slots, reached by ssh: h1:8,h2:8 or user@h1:8.")
          ->check(not_empty());
  app.add_option("--hostfile", request.hostfile,
                 "File with one `host slots=8` per line, or with bare names, each line a slot, as "
                 "$PBS_NODEFILE "
                 "and $LSB_DJOB_HOSTFILE are;\n"
                 "see hostfiles/README.md. In a SLURM allocation none is needed.")
      ->excludes(hosts);
  app.add_option("--include", request.include,
                 "Use only these hosts, perhaps only some GPUs of them: h1@h2:0,2.")
      ->check(not_empty());
  app.add_option("--exclude", request.exclude, "Leave out these hosts or GPUs: h3@h2:1.")
      ->check(not_empty());
  app.add_option("--ssh-config", options.ssh_config,
                 "Configuration file for ssh instead of the user's own (ssh -F).")
      ->check(input_file());
  app.add_flag(
      "--ship", options.ship,
      "Copy this dstrain to hosts that lack it or have another version, and run it from there.");
  app.add_option(
         "--env", options.environment,
         "Variable for the ranks: NAME (as it is set here) or NAME=VALUE. Repeatable. DSTRAIN_*, "
         "NCCL_*, GLOO_*,\n"
         "OMP_*, GOMP_*, UCX_*, FI_*, HF_*, WANDB_*, CUDA_* and secrets reach other hosts anyway.")
      ->allow_extra_args(false);
  app.add_option_function<std::string>(
         "--env-file",
         [&options](const std::string& path) {
           const std::vector<std::string> variables = read_env_file(path);
           options.environment.insert(options.environment.begin(), variables.begin(),
                                      variables.end());
         },
         "File of NAME=VALUE lines for the ranks, such as .deepspeed_env; --env has the last word.")
      ->type_name("FILE");
  app.add_flag("--preflight", options.preflight,
               "Look at all hosts first, as `dstrain doctor` does, and leave out those on which no "
               "job can run. Then let\n"
               "ranks on all of them multiply matrices for 2 s and sum 64 MiB, in each host and "
               "with its neighbours: a host\n"
               "below 80 % of the median is named. Hosts beyond --ranks take the place of both.");
  app.add_option(
         "--max-restarts", options.max_restarts,
         "Starts after a failure that another start may cure, from the newest checkpoint, without "
         "lost hosts;\n"
         "progress refills them, three starts without any end the job with exit code 93. "
         "Default: 0.")
      ->check(number_in(0, 1000));
  app.add_option(
         "--min-ranks", options.min_ranks,
         "A restart after the loss of a host needs at least so many. Default: any number that fits "
         "the recipe.")
      ->check(number_in(1, 1 << 20));
  app.add_option_function<std::string>(
         "--hang-timeout",
         [&options](const std::string& text) {
           try {
             options.hang_limit = launcher::hang_limit_from(text);
           } catch (const Error& error) {
             throw CLI::ValidationError("--hang-timeout", error.what());
           }
         },
         "Seconds without progress after which a rank is hung; auto takes the limit from the plan "
         "and the run, at\n"
         "least 60 in a step; off never asks. Default: auto.")
      ->default_str("auto");
  app.add_option_function<std::string>(
         "--tee",
         [&options](const std::string& text) {
           try {
             options.tee = launcher::tee_from(text);
           } catch (const Error& error) {
             throw CLI::ValidationError("--tee", error.what());
           }
         },
         "Ranks whose output is shown: 0,8, all or none; equal lines are shown once. Every rank's "
         "is in the run\n"
         "directory. Default: 0.")
      ->type_name("RANKS");
}

void add_run_options(CLI::App& app, launcher::LaunchOptions& options) {
  app.add_option_function<std::string>(
         "--resume",
         [&options](const std::string& text) { options.resume = launcher::resume_from(text); },
         "auto: go on with the newest run of this recipe that has a checkpoint, or start anew; "
         "never;\n"
         "or DIR: a run directory to go on with, or a checkpoint to start a new run from. "
         "Default: never.")
      ->check(not_empty());
  app.add_option(
         "--run-name", options.run_name,
         "Name of the run directory, instead of one with time and id. With --resume the run of "
         "this name goes on\n"
         "where it has a checkpoint; else it starts from DIR, or anew.")
      ->check(not_empty());
  app.add_flag("--dry-run", options.dry_run,
               "Print who would run where, with which environment and command; start nothing.");
}

}  // namespace dstrain
