#pragma once

#include <CLI/CLI.hpp>

#include "launcher/job/launch.h"

namespace dstrain {

/// The options of a job about its hosts and about failures: --ranks, --hosts, --hostfile,
/// --include, --exclude, --ssh-config, --ship, --env, --env-file, --max-restarts, --min-ranks,
/// --hang-timeout, --tee.
void add_host_options(CLI::App& app, launcher::LaunchOptions& options);

/// The options about where a run is kept: --resume, --run-name, --dry-run.
void add_run_options(CLI::App& app, launcher::LaunchOptions& options);

}  // namespace dstrain
