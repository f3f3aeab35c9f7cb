#include "launcher/transport/joined.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "launcher/base/fd.h"
#include "launcher/base/words.h"
#include "launcher/hosts/host_list.h"
#include "launcher/transport/dial.h"

namespace dstrain::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kExchangeLimit{20'000};
/// From the end of one start of the job to the next one's agents.
constexpr milliseconds kAgainLimit{10'000};
constexpr const char* kOneEach =
    "one process for each node: srun --mpi=pmix --ntasks-per-node=1, mpirun --map-by ppr:1:node; "
    "or "
    "`dstrain launch` once, in the batch script";

int number_of(const Variables& variables, const char* name, int otherwise) {
  const char* text = variables(name);
  int value = otherwise;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), value);
  return value;
}

/// How many processes the srun or mpirun that started this one has started; 0: not started so.
int started_tasks(const Variables& variables) {
  const bool step = variables("SLURM_STEP_ID") != nullptr && variables("SLURM_PROCID") != nullptr;
  const int by_slurm = step ? number_of(variables, "SLURM_STEP_NUM_TASKS", 0) : 0;
  return std::max(by_slurm, number_of(variables, "OMPI_COMM_WORLD_SIZE", 0));
}

Introduction introduce(const Machine& machine, int rank) {
  return {.name = std::to_string(rank),
          .host = machine.host,
          .cores = machine.cores,
          .gpus = machine.gpus};
}

PmixAnswer exchange(const std::string& value, milliseconds limit) {
  std::optional<PmixAnswer> answer = pmix_exchange(value, limit);
  if (!answer) {
    throw Error(ErrorKind::hosts, "the PMIx server of this srun or mpirun is not there", kOneEach);
  }
  if (answer->local_size > 1) {
    throw Error(ErrorKind::usage,
                fmt::format("{} `dstrain launch` were started on one node", answer->local_size),
                kOneEach);
  }
  return std::move(*answer);
}

/// An agent for every start of the job, until the controller is gone.
int serve(const Machine& machine, const RunAgent& run_agent) {
  const auto [target_line, rank] = [] {
    const PmixAnswer answer = exchange("", kExchangeLimit);
    return std::pair(answer.value, answer.rank);
  }();  // the helper has ended: an agent takes every child for one of the ranks'
  DialTarget target = dial_target_from(target_line);
  const Introduction introduction = introduce(machine, rank);
  DialOptions options{.limit = kExchangeLimit};
  while (UniqueFd socket = dial(target, introduction, options)) {
    target.addresses = {peer_address(socket.get())};
    options = {.limit = kExchangeLimit, .again = true};
    run_agent(std::move(socket));
  }
  return 0;  // the job's exit code is the controller's
}

class JoinedTransport final : public Transport {
 public:
  JoinedTransport(std::vector<NodeHost> nodes, std::shared_ptr<JoinedHosts> hosts)
      : nodes_(std::move(nodes)), hosts_(std::move(hosts)) {}

  void add_polls(std::vector<pollfd>& fds) const override {
    if (!nodes_.empty()) hosts_->add_polls(fds);
  }

  [[nodiscard]] std::optional<Time> deadline() const override {
    if (nodes_.empty() || !until_) return std::nullopt;
    const auto soon = hosts_->deadline();
    return soon ? std::min(*soon, *until_) : *until_;
  }

  void advance(std::vector<AgentLink>& links, Time now) override {
    if (nodes_.empty()) return;
    if (!until_) until_ = now + kAgainLimit;
    hosts_->advance(now);
    std::erase_if(nodes_, [&](const NodeHost& node) {
      AgentLink& link = links[static_cast<std::size_t>(node.node)];
      if (auto channel = hosts_->take(node.host.name)) {
        link.channel = std::move(channel);
      } else if (now >= *until_) {
        link.problem = {
            HostProblem::Kind::timeout,
            fmt::format("its agent did not come back within {} s", kAgainLimit.count() / 1000),
            "srun or mpirun has lost that process, and with it the host"};
      } else {
        return false;
      }
      return true;
    });
  }

  /// Nothing of ours carries it: the agents are children of Slurm or mpirun, and the end of the
  /// connection ends their part.
  AgentEnding end(int /*node*/, milliseconds /*limit*/) override { return {}; }
  void kill(int /*node*/) override {}

 private:
  std::vector<NodeHost> nodes_;  ///< still to be handed over
  std::shared_ptr<JoinedHosts> hosts_;
  std::optional<Time> until_;
};

}  // namespace

JoinedHosts::JoinedHosts(const Machine& machine, const Variables& variables, milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  // The helper answers for task 0 until everybody has fetched the address.
  const PmixAnswer answer = exchange(to_line(listener_.target()), limit);
  hosts_.resize(static_cast<std::size_t>(answer.size));
  dialled_.resize(hosts_.size());
  require_files_of_hosts(hosts_.size());
  listener_.await(hosts_.size());
  hosts_.front() = {
      .name = machine.host, .address = {}, .gpus = machine.gpus, .cores = machine.cores};
  wait_for_all(deadline);
  const std::string names = missing(variables);
  if (names.empty()) return;
  throw Error(
      ErrorKind::hosts,
      fmt::format("{} of {} processes of this srun or mpirun did not report within {} s: {}",
                  std::count(dialled_.begin() + 1, dialled_.end(), std::nullopt), answer.size,
                  limit.count() / 1000, names),
      "their own output says why; a firewall between the nodes keeps all away");
}

void JoinedHosts::wait_for_all(Transport::Time deadline) {
  const auto all_here = [this] {
    return std::all_of(dialled_.begin() + 1, dialled_.end(),
                       [](const std::optional<DialledAgent>& agent) { return agent.has_value(); });
  };
  for (auto now = std::chrono::steady_clock::now(); !all_here() && now < deadline;
       now = std::chrono::steady_clock::now()) {
    advance(now);
    std::vector<pollfd> fds;
    listener_.add_polls(fds);
    const auto next = std::min(deadline, listener_.deadline().value_or(deadline));
    const auto left = std::chrono::ceil<milliseconds>(next - now).count();
    if (!all_here()) ::poll(fds.data(), fds.size(), static_cast<int>(std::max<long>(left, 0)));
  }
}

std::string JoinedHosts::missing(const Variables& variables) const {
  std::vector<int> tasks;
  for (std::size_t i = 1; i < dialled_.size(); ++i) {
    if (!dialled_[i]) tasks.push_back(static_cast<int>(i));
  }
  if (tasks.empty()) return {};
  std::string text = fmt::format("task{} {}", tasks.size() == 1 ? "" : "s", fold_ranks(tasks));
  const char* list = variables("SLURM_STEP_NODELIST");
  if (list == nullptr) return text;
  // With one task on each node, tasks are numbered as the nodes are listed.
  const std::vector<std::string> nodes = expand_node_list(list);
  std::vector<std::string> names;
  for (const int task : tasks) {
    if (nodes.size() == dialled_.size()) names.push_back(nodes[static_cast<std::size_t>(task)]);
  }
  return names.empty() ? text : fmt::format("{} ({})", text, fmt::join(names, ", "));
}

void JoinedHosts::advance(Transport::Time now) {
  for (DialledAgent& agent : listener_.advance(now)) {
    const Introduction& introduction = agent.introduction;
    std::size_t task = 0;
    std::from_chars(introduction.name.data(), introduction.name.data() + introduction.name.size(),
                    task);
    if (task == 0 || task >= hosts_.size()) continue;
    hosts_[task] = {.name = introduction.host,
                    .address = {},
                    .gpus = introduction.gpus,
                    .cores = introduction.cores,
                    .reach = Reach::joined};
    dialled_[task] = std::move(agent);
  }
}

std::optional<Channel> JoinedHosts::take(const std::string& host) {
  for (std::size_t i = 1; i < hosts_.size(); ++i) {
    if (hosts_[i].name != host || !dialled_[i]) continue;
    return welcome(*std::exchange(dialled_[i], std::nullopt));
  }
  return std::nullopt;
}

std::optional<JoinedRole> join(const Machine& machine, const Variables& variables,
                               const RunAgent& run_agent) {
  const int tasks = started_tasks(variables);
  const std::optional<int> rank = pmix_rank();
  if (tasks == 1 || (!rank && tasks == 0)) return std::nullopt;
  if (!rank) {
    throw Error(ErrorKind::usage,
                fmt::format("{} `dstrain launch` were started that cannot find each other: there "
                            "is no PMIx",
                            tasks),
                kOneEach);
  }
  if (*rank > 0) return JoinedRole{.controller = nullptr, .exit_code = serve(machine, run_agent)};
  auto hosts = std::make_shared<JoinedHosts>(machine, variables, kExchangeLimit);
  if (hosts->hosts().size() == 1) return std::nullopt;
  return JoinedRole{.controller = std::move(hosts), .exit_code = std::nullopt};
}

Allocation allocate_joined(const JoinedHosts& joined, const HostRequest& request) {
  Allocation allocation;
  allocation.hosts = joined.hosts();
  const int num_hosts = static_cast<int>(allocation.hosts.size());
  const int share = std::max(1, (request.ranks + num_hosts - 1) / num_hosts);
  int slots = 0;
  for (Host& host : allocation.hosts) {
    if (request.cpu_ranks) host.gpus = 0;
    host.slots = host.gpus > 0 ? host.gpus : share;
    slots += host.slots;
  }
  if (request.ranks > slots) {
    throw Error(ErrorKind::usage,
                fmt::format("--ranks {}: the {} hosts of this srun or mpirun have {} GPUs",
                            request.ranks, num_hosts, slots),
                "start more processes, one on each further node");
  }
  return allocation;
}

std::unique_ptr<Transport> make_joined_transport(std::vector<NodeHost> nodes,
                                                 std::shared_ptr<JoinedHosts> hosts) {
  return std::make_unique<JoinedTransport>(std::move(nodes), std::move(hosts));
}

}  // namespace dstrain::launcher
