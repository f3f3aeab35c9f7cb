#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/output_file.h"
#include "launcher/base/console.h"
#include "launcher/base/hang_limit.h"
#include "launcher/base/interrupts.h"
#include "launcher/base/run_directory.h"
#include "launcher/base/tee.h"
#include "launcher/hosts/allocation.h"

namespace dstrain::launcher {

class JoinedHosts;

/// A file that the run directory holds from the start.
struct RunFile {
  std::string name;
  std::string content;
  Readers readers = Readers::by_umask;
};

struct LaunchOptions {
  std::string recipe_name;  ///< first part of the run directory's name
  /// Called once the number of ranks is known and before anything is made or started. Returns
  /// recipe.yaml and whatever else belongs beside it; throws Error{usage} when the recipe does not
  /// fit so many ranks.
  std::function<std::vector<RunFile>(int world_size)> files;
  std::vector<std::string> recipe_variables = {};  ///< environment variables that the recipe names
  std::filesystem::path output = "runs";           ///< parent of the run directory
  HostRequest request;                             ///< which hosts and how many ranks
  bool cpu_ranks = false;  ///< the recipe asks for the CPU whatever GPUs there are
  Resume resume = {};
  /// What a step costs on `now` ranks beside `before`, in one line; empty: nothing to say. Called
  /// at a restart on fewer ranks, for which `files` has found the recipe to fit.
  std::function<std::string(int before, int now)> price = {};
  /// Fixed name of the run directory; "auto" continues it when it holds a checkpoint. Empty: a new
  /// name.
  std::string run_name = {};
  /// Called with the run directory when the ranks have ended well. What it throws is said, and the
  /// job's end stays what it was.
  std::function<void(const std::filesystem::path& run)> finished = {};
  bool dry_run = false;
  bool preflight = false;  ///< look at all hosts first and leave out those that are not usable
  int max_restarts = 0;    ///< after a failure that another start may cure; refilled by progress
  int min_ranks = 0;  ///< a restart on fewer hosts keeps at least so many; 0: the first start's
  HangLimit hang_limit = {};
  std::vector<std::string> environment = {};  ///< --env: NAME or NAME=VALUE for the ranks
  Tee tee = {};                               ///< ranks whose output is shown
  bool ship = false;                          ///< copy our own tree to hosts that lack it
  std::filesystem::path ssh_config = {};      ///< ssh -F
  /// The hosts whose processes another program has started (launcher/transport/joined.h); they are
  /// the job's.
  std::shared_ptr<JoinedHosts> joined = nullptr;
  std::vector<std::string> agent_command;  ///< program (a path) and arguments of an agent
  /// Program and first arguments of a rank; "<run directory>/recipe.yaml" and perhaps "--resume
  /// DIR" follow.
  std::vector<std::string> rank_command;
  std::string build;                      ///< program and version, for environment.json
  std::vector<std::string> command_line;  ///< as typed, for environment.json
};

/// Runs one job to its end: run directory, agents, ranks, failure report, restarts. Returns the
/// exit code of the job: 0, the failed rank's own code, 128 + signal, 75 when a host or an agent
/// was lost, 93 when three starts in a row came no further. A first SIGINT, SIGTERM, SIGUSR1 or
/// SIGHUP of `interrupts` asks the ranks to finish their step, save and end, and after SIGTERM and
/// SIGUSR1 the code is 75: go on later. A second one ends them now. Throws Error for what is wrong
/// before a rank runs. Becomes the subreaper of its descendants while it runs.
[[nodiscard]] int launch(const LaunchOptions& options, const ConsoleSink& sink,
                         Interrupts& interrupts);

}  // namespace dstrain::launcher
