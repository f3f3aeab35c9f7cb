#include "launcher/hosts/allocation.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "launcher/hosts/host_list.h"
#include "launcher/hosts/slurm_allocation.h"

namespace dstrain::launcher {
namespace {

Allocation read_hostfile(const std::filesystem::path& path, const std::string& this_host) {
  std::string text;
  try {
    text = read_file(path, kHostfileLimit);
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, fmt::format("--hostfile: {}", error.what()),
                error.hint().empty()
                    ? "a hostfile has lines 'host slots=8', see hostfiles/README.md"
                    : error.hint());
  }
  Allocation allocation{.hosts = parse_hostfile(text, path.string(), this_host), .remarks = {}};
  if (is_list_of_names(text)) {
    allocation.remarks.push_back(
        fmt::format("{} says no slots=: each line is one rank of that host", shown(path.string())));
  }
  return allocation;
}

/// Fills in what is known of this machine without asking an agent, and checks the request by it.
void describe_local(std::vector<Host>& hosts, const Machine& machine, bool cpu_ranks) {
  for (Host& host : hosts) {
    if (host.reach != Reach::local) continue;
    host.cores = machine.cores;
    // This machine need not be reached when it is the only one.
    if (hosts.size() == 1) host.address = "127.0.0.1";
    if (host.devices.empty() || cpu_ranks) host.gpus = machine.gpus;
    if (cpu_ranks) continue;
    for (const int device : host.devices) {
      if (device < machine.gpus) continue;
      throw Error(ErrorKind::usage, fmt::format("GPU {} of {}: it has {} visible GPU{}", device,
                                                host.name, machine.gpus, plural(machine.gpus)));
    }
    if (machine.gpus > 0 && host.slots > machine.gpus) {
      throw Error(
          ErrorKind::usage,
          fmt::format("{} ranks on {}: it has {} visible GPU{}", host.slots, host.name,
                      machine.gpus, plural(machine.gpus)),
          fmt::format("give it {} or fewer, or CUDA_VISIBLE_DEVICES= for CPU ranks", machine.gpus));
    }
  }
}

/// "h1 4, h2 2".
std::string slots_of(const std::vector<Host>& hosts) {
  constexpr std::size_t kMaxNamed = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(hosts.size(), kMaxNamed); ++i) {
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", hosts[i].name, hosts[i].slots);
  }
  if (hosts.size() > kMaxNamed) text += fmt::format(", {} more hosts", hosts.size() - kMaxNamed);
  return text;
}

void check_ranks(int ranks, const std::vector<Host>& hosts) {
  int slots = 0;
  for (const Host& host : hosts) slots += host.slots;
  if (ranks >= 0 && ranks <= slots) return;
  throw Error(ErrorKind::usage,
              fmt::format("--ranks {}: the hosts take {} rank{} ({})", ranks, slots, plural(slots),
                          slots_of(hosts)),
              hosts.front().reach == Reach::slurm
                  ? "ask Slurm for more: --nodes, --gpus-per-node, or on the CPU --ntasks-per-node"
                  : "use fewer ranks, or give the hosts more slots");
}

void check_number(const std::vector<Host>& hosts) {
  const auto num_ssh = std::ranges::count(hosts, Reach::ssh, &Host::reach);
  if (num_ssh <= kMaxSshHosts) return;
  throw Error(ErrorKind::usage,
              fmt::format("{} hosts by ssh: dstrain starts at most {}", num_ssh, kMaxSshHosts),
              "take fewer hosts with --include or --exclude; a larger job belongs to a scheduler: "
              "`dstrain launch --slurm`, see slurm/README.md");
}

}  // namespace

Allocation allocate(const HostRequest& request, const Machine& machine,
                    const Variables& variables) {
  if (!request.hosts.empty() && !request.hostfile.empty()) {
    throw Error(ErrorKind::usage, "--hosts and --hostfile both name hosts", "use one of them");
  }
  const bool filtered = !request.include.empty() || !request.exclude.empty();
  Allocation allocation;
  if (!request.hosts.empty()) {
    allocation.hosts = parse_hosts(request.hosts, machine.host);
  } else if (!request.hostfile.empty()) {
    allocation = read_hostfile(request.hostfile, machine.host);
  } else if (in_slurm_allocation(variables)) {
    allocation = allocate_slurm(request.cpu_ranks, variables);
  } else if (filtered) {
    allocation = allocate_local(machine, 0);
  } else {
    return allocate_local(machine, request.ranks);
  }
  describe_local(allocation.hosts, machine, request.cpu_ranks);
  if (filtered) {
    allocation.hosts = filter_hosts(std::move(allocation.hosts), request.include, request.exclude);
  }
  check_number(allocation.hosts);
  check_ranks(request.ranks, allocation.hosts);
  return allocation;
}

Allocation allocate_local(const Machine& machine, int ranks) {
  constexpr int kMaxRanks = 1024;
  if (ranks < 0 || ranks > kMaxRanks) {
    throw Error(ErrorKind::usage,
                fmt::format("--ranks {}: a machine takes 1 to {} ranks", ranks, kMaxRanks));
  }
  Allocation allocation;
  if (machine.gpus_hidden && machine.gpus_installed > 0) {
    allocation.remarks.push_back(
        fmt::format("CUDA_VISIBLE_DEVICES shows none of the {} GPUs of {}: the ranks run on CPU",
                    machine.gpus_installed, machine.host));
  }
  if (machine.gpus > 0 && ranks > machine.gpus) {
    throw Error(ErrorKind::usage,
                fmt::format("--ranks {}: {} has {} visible GPU{}", ranks, machine.host,
                            machine.gpus, machine.gpus == 1 ? "" : "s"),
                fmt::format("use --ranks {} or fewer, or CUDA_VISIBLE_DEVICES= for CPU ranks",
                            machine.gpus));
  }
  const int slots = ranks > 0 ? ranks : std::max(1, machine.gpus);
  allocation.hosts.push_back({.name = machine.host,
                              .address = "127.0.0.1",
                              .slots = slots,
                              .gpus = machine.gpus,
                              .cores = machine.cores});
  return allocation;
}

}  // namespace dstrain::launcher
