#include "launcher/transport/reach_hosts.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "launcher/base/fd.h"
#include "launcher/transport/joined.h"

namespace dstrain::launcher {
namespace {

std::unique_ptr<Transport> reach_by_ssh(std::vector<NodeHost> nodes, const ReachOptions& options) {
  SshOptions ssh{
      .agent_command = options.agent_command, .config = options.ssh_config, .ship = options.ship};
  ssh.agent_command.emplace_back("--over-ssh");
  // The agent looks for LibTorch before there is a channel that brings it variables.
  if (const char* site = std::getenv("DSTRAIN_SITE_PACKAGES"))
    ssh.environment.push_back(fmt::format("DSTRAIN_SITE_PACKAGES={}", site));
  if (options.connect_limit) ssh.connect_timeout = *options.connect_limit;
  return make_ssh_transport(std::move(nodes), std::move(ssh));
}

std::unique_ptr<Transport> reach_by_srun(std::vector<NodeHost> nodes, const ReachOptions& options) {
  SrunOptions srun{.agent_command = options.agent_command, .log = options.srun_log};
  srun.agent_command.emplace_back("--dial");
  if (options.connect_limit) srun.dial_limit = *options.connect_limit;
  return make_srun_transport(std::move(nodes), std::move(srun));
}

}  // namespace

std::unique_ptr<Transport> reach_hosts(const std::vector<Host>& hosts,
                                       const ReachOptions& options) {
  require_files_of_hosts(hosts.size());
  std::vector<std::unique_ptr<Transport>> parts;
  std::vector<NodeHost> by_ssh;
  std::vector<NodeHost> by_srun;
  std::vector<NodeHost> joined;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const int node = static_cast<int>(i);
    switch (hosts[i].reach) {
      case Reach::local:
        parts.push_back(make_local_transport(node, options.agent_command));
        break;
      case Reach::ssh:
        by_ssh.push_back({node, hosts[i]});
        break;
      case Reach::slurm:
        by_srun.push_back({node, hosts[i]});
        break;
      case Reach::joined:
        joined.push_back({node, hosts[i]});
        break;
    }
  }
  if (!by_ssh.empty()) parts.push_back(reach_by_ssh(std::move(by_ssh), options));
  if (!joined.empty()) parts.push_back(make_joined_transport(std::move(joined), options.joined));
  if (!by_srun.empty()) parts.push_back(reach_by_srun(std::move(by_srun), options));
  return combine(std::move(parts));
}

}  // namespace dstrain::launcher
