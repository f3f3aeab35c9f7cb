#include "launcher/job/prepare_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <sstream>
#include <vector>

#include "engine/base/redact.h"
#include "engine/base/run_layout.h"
#include "launcher/job/exported_environment.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

/// CUDA_VISIBLE_DEVICES for a host of which only some GPUs are used: here they count among those
/// that this process sees.
std::string visible_devices(const Host& host) {
  const char* shown = host.reach == Reach::local ? std::getenv("CUDA_VISIBLE_DEVICES") : nullptr;
  std::vector<std::string> names;
  std::istringstream list(shown != nullptr ? shown : "");
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  std::vector<std::string> used;
  for (const int device : host.devices) {
    const auto index = static_cast<std::size_t>(device);
    used.push_back(index < names.size() ? names[index] : std::to_string(device));
  }
  return fmt::format("CUDA_VISIBLE_DEVICES={}", fmt::join(used, ","));
}

}  // namespace

PrepareJob prepare_job(const LaunchOptions& options, const NodePlacement& node, int world_size,
                       const fs::path& run, const std::string& resume_from) {
  const bool local = node.host.reach == Reach::local;
  PrepareJob job{.run_directory = run.string(),
                 .working_directory = fs::current_path().string(),
                 .command = options.rank_command,
                 .environment = {},
                 .host = node.host.name,
                 .first_rank = node.first_rank,
                 .num_ranks = node.num_ranks,
                 .world_size = world_size,
                 .cores = local ? node.host.cores : 0,
                 .rendezvous_address = node.first_rank == 0 ? node.host.address : "",
                 .hang_limit = options.hang_limit,
                 .tee = options.tee};
  job.command.push_back(RunLayout(run).recipe().string());
  if (!resume_from.empty()) {
    job.command.emplace_back("--resume");
    job.command.push_back(resume_from);
  }
  // A local agent has this process's environment already.
  if (!local || !options.environment.empty())
    job.environment = exported_environment(own_environment(), options.environment);
  if (!node.host.devices.empty()) job.environment.push_back(visible_devices(node.host));
  return job;
}

}  // namespace dstrain::launcher
