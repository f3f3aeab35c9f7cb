#include "launcher/hosts/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/handshake.h"
#include "engine/base/job_environment.h"
#include "launcher/base/words.h"

namespace dstrain::launcher {

Placement place(const Allocation& allocation, int ranks) {
  Placement placement;
  for (const Host& host : allocation.hosts) {
    const int left = ranks > 0 ? ranks - placement.world_size : host.slots;
    const int taken = std::min(host.slots, left);
    if (taken <= 0) break;
    placement.nodes.push_back({host, placement.world_size, taken});
    placement.world_size += taken;
  }
  if (placement.world_size < ranks) {
    std::string slots;
    for (const Host& host : allocation.hosts)
      slots += fmt::format("{}{}:{}", slots.empty() ? "" : ",", host.name, host.slots);
    throw Error(ErrorKind::usage,
                fmt::format("{} ranks are asked for and there are {} slots ({})", ranks,
                            placement.world_size, slots),
                fmt::format("use --ranks {} or fewer, or more hosts", placement.world_size));
  }
  return placement;
}

std::vector<std::string> added_hosts(const Placement& before, const Placement& after) {
  std::vector<std::string> added;
  for (const NodePlacement& node : after.nodes) {
    const bool known = std::ranges::any_of(before.nodes, [&node](const NodePlacement& other) {
      return other.host.name == node.host.name;
    });
    if (!known) added.push_back(node.host.name);
  }
  return added;
}

OpenMpChoice openmp_choice(const Variables& variables) {
  return {
      .threads = variables("OMP_NUM_THREADS") != nullptr,
      .waiting = variables("OMP_WAIT_POLICY") != nullptr || variables("GOMP_SPINCOUNT") != nullptr};
}

std::vector<std::string> rank_environment(const PrepareJob& job, const StartRanks& start,
                                          int local_rank, OpenMpChoice user) {
  namespace env = job_environment;
  std::vector<std::string> result = job.environment;
  const auto set = [&result](const char* name, const auto& value) {
    result.push_back(fmt::format("{}={}", name, value));
  };
  set(env::kRank, job.first_rank + local_rank);
  set(env::kLocalRank, local_rank);
  set(env::kWorldSize, job.world_size);
  set(env::kLocalWorldSize, job.num_ranks);
  set(env::kMasterAddress, start.master_address);
  // Port 0 is not yet bound: only the dry run shows it.
  set(env::kMasterPort,
      start.master_port > 0 ? std::to_string(start.master_port) : "(bound at start)");
  set(env::kRunDirectory, job.run_directory);
  if (job.secret.size() == JobSecret().size()) {
    JobSecret secret;
    std::copy(job.secret.begin(), job.secret.end(), secret.begin());
    set(env::kJobSecret, to_hex(secret));
    set(env::kAttempt, job.attempt);
  }
  if (!user.waiting) set("OMP_WAIT_POLICY", "passive");
  if (!user.threads) set("OMP_NUM_THREADS", std::max(1, job.cores / std::max(1, job.num_ranks)));
  return result;
}

namespace {

/// Hosts that are reached by ssh have not been asked what they have.
std::string devices_of(const Host& host) {
  const std::string gpus = fmt::format("{} GPU{}", host.gpus, host.gpus == 1 ? "" : "s");
  if (host.reach == Reach::ssh)
    return host.gpus > 0 ? gpus : "GPUs and cores are known when it is started";
  return fmt::format("{}, {} core{}", gpus, host.cores, host.cores == 1 ? "" : "s");
}

}  // namespace

std::string describe(const Placement& placement, const std::vector<PrepareJob>& jobs,
                     OpenMpChoice user) {
  std::string text = fmt::format("{} rank{} on {} host{}\n", placement.world_size,
                                 placement.world_size == 1 ? "" : "s", placement.nodes.size(),
                                 placement.nodes.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const NodePlacement& node = placement.nodes[i];
    const PrepareJob& job = jobs[i];
    text += fmt::format("\nhost {}: ranks {}-{}, {}\n", node.host.name, node.first_rank,
                        node.first_rank + node.num_ranks - 1, devices_of(node.host));
    std::vector<std::string> words;
    for (const std::string& word : job.command) words.push_back(shell_quote(word));
    text += fmt::format("  directory: {}\n  command:   {}\n", job.working_directory,
                        fmt::join(words, " "));
    for (int local_rank = 0; local_rank < node.num_ranks; ++local_rank) {
      text += fmt::format("  rank {}:\n", node.first_rank + local_rank);
      const StartRanks start{placement.nodes.front().host.address, 0};
      for (const std::string& entry : rank_environment(job, start, local_rank, user)) {
        text += fmt::format("    {}\n", entry);
      }
    }
  }
  return text;
}

}  // namespace dstrain::launcher
