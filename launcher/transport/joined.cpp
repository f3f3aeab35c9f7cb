#include "launcher/transport/joined.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "launcher/base/fd.h"
#include "launcher/base/words.h"
#include "launcher/transport/dial.h"

namespace dstrain::launcher {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// From the end of one start of the job to the next one's agents.
constexpr milliseconds kAgainLimit{10'000};
/// For an agent to find the controller that it has served.
constexpr milliseconds kFindAgainLimit{20'000};
/// A name may stand for another address by now: it is asked for anew after so long.
constexpr milliseconds kNameLimit{10'000};
constexpr milliseconds kNamePause{1'000};
constexpr std::chrono::seconds kSayInterval{30};
constexpr std::chrono::seconds kFirstSay{5};

/// Looks for the controller until it is found or `limit` has passed: its names are asked for anew,
/// since a name server learns them late, and they may move. Empty when it was reached before, now
/// or by an earlier call, and has ended. Error{hosts} when it was never reached.
UniqueFd find_controller(const Meeting& meeting, const Introduction& introduction,
                         milliseconds limit, bool again) {
  const auto deadline = Clock::now() + limit;
  for (std::string fault;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (left <= milliseconds(0)) {
      if (again) return {};
      throw Error(
          ErrorKind::hosts,
          fmt::format("process {} of {} by {} has not found index 0 within {} s: {}", meeting.index,
                      meeting.count, meeting.started_by, limit.count() / 1000, fault),
          "the output of index 0 says why; any TCP port must be open between the nodes");
    }
    DialTarget target{.addresses = {}, .port = meeting.port, .secret = meeting.secret};
    for (const std::string& name : meeting.addresses) {
      for (std::string& address : addresses_of(name))
        target.addresses.push_back(std::move(address));
    }
    if (target.addresses.empty()) {
      fault = fmt::format("'{}' stands for no address", fmt::join(meeting.addresses, ", "));
      std::this_thread::sleep_for(std::min(left, kNamePause));
      continue;
    }
    try {
      return dial(target, introduction,
                  {.limit = std::min(left, kNameLimit), .again = again, .alone = meeting.returns});
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::again) return {};
      if (error.kind() != ErrorKind::hosts) throw;
      fault = error.what();
    }
  }
}

/// An agent for every start of the job, until the controller is gone. Returns the exit code: 0 also
/// where ranks failed, since that is for the controller to say.
int serve(Meeting meeting, const Machine& machine, const RunAgent& run_agent, const Say& say) {
  const Introduction introduction{.name = std::to_string(meeting.index),
                                  .host = machine.host,
                                  .cores = machine.cores,
                                  .gpus = machine.gpus};
  bool lost = false;
  for (UniqueFd socket = find_controller(meeting, introduction, meeting.patience, /*again=*/false);
       socket; socket = find_controller(meeting, introduction, kFindAgainLimit, /*again=*/true)) {
    if (!meeting.returns) meeting.addresses = {peer_address(socket.get())};
    lost = run_agent(std::move(socket)) != 0;
  }
  if (!lost || !meeting.returns) return 0;
  // What started the processes starts them anew.
  say(fmt::format("process {} of {}: index 0 was lost while ranks ran here", meeting.index,
                  meeting.count));
  return exit_code(ErrorKind::again);
}

/// Whether the agent still waits at the other end.
bool is_there(const DialledAgent& agent) {
  std::array<char, 1> byte{};
  const ssize_t got = ::recv(agent.socket.get(), byte.data(), byte.size(), MSG_PEEK | MSG_DONTWAIT);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

class JoinedTransport final : public Transport {
 public:
  JoinedTransport(std::vector<NodeHost> nodes, std::shared_ptr<JoinedHosts> hosts)
      : nodes_(std::move(nodes)), hosts_(std::move(hosts)) {}

  /// Also while the job runs: who was lost may come back and waits for the next start.
  void add_polls(std::vector<pollfd>& fds) const override { hosts_->add_polls(fds); }

  [[nodiscard]] std::optional<Time> deadline() const override {
    const auto soon = hosts_->deadline();
    if (nodes_.empty() || !until_) return soon;
    return soon ? std::min(*soon, *until_) : *until_;
  }

  void advance(std::vector<AgentLink>& links, Time now) override {
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
            fmt::format("{} has lost that process, and with it the host", hosts_->started_by())};
      } else {
        return false;
      }
      return true;
    });
  }

  /// Nothing of ours carries it: the agents are children of what started them, and the end of the
  /// connection ends their part.
  AgentEnding end(int /*node*/, milliseconds /*limit*/) override { return {}; }
  void kill(int /*node*/) override {}

 private:
  std::vector<NodeHost> nodes_;  ///< still to be handed over
  std::shared_ptr<JoinedHosts> hosts_;
  std::optional<Time> until_;
};

}  // namespace

JoinedHosts::JoinedHosts(const Machine& machine, DialListener listener, Meeting meeting,
                         const Say& say)
    : meeting_(std::move(meeting)),
      listener_(std::move(listener)),
      members_(static_cast<std::size_t>(meeting_.count)) {
  require_files_of_hosts(members_.size());
  listener_.await(members_.size());
  members_.front().host = {
      .name = machine.host, .address = {}, .gpus = machine.gpus, .cores = machine.cores};
  wait_for_all(say);
  if (!twice_.empty()) {
    throw Error(ErrorKind::usage, twice_, "each process of a start has an index of its own");
  }
  const std::string names = missing();
  if (names.empty()) return;
  const std::string strangers = listener_.refused().empty()
                                    ? ""
                                    : fmt::format("; who came from {} did not prove the secret",
                                                  fmt::join(listener_.refused(), ", "));
  const auto num_missing = std::count_if(members_.begin() + 1, members_.end(),
                                         [](const Member& member) { return !member.dialled; });
  throw Error(ErrorKind::hosts,
              fmt::format("{} of {} processes of {} did not report within {} s: {}{}", num_missing,
                          meeting_.count, meeting_.started_by, meeting_.patience.count() / 1000,
                          names, strangers),
              "their own output says why; a firewall between the nodes keeps all away");
}

void JoinedHosts::wait(Transport::Time until) {
  std::vector<pollfd> fds;
  listener_.add_polls(fds);
  const auto next = std::min(until, listener_.deadline().value_or(until));
  const auto left = std::chrono::ceil<milliseconds>(next - Clock::now()).count();
  ::poll(fds.data(), fds.size(), static_cast<int>(std::max<long>(left, 0)));
  advance(Clock::now());
}

void JoinedHosts::wait_for_all(const Say& say) {
  const auto begin = Clock::now();
  const auto deadline = begin + meeting_.patience;
  advance(begin);
  for (auto next = begin + kFirstSay; twice_.empty() && Clock::now() < deadline;) {
    const std::string names = missing();
    if (names.empty()) return;
    if (Clock::now() >= next) {
      say(fmt::format("waiting for processes of {}: {} (up to {} s)", meeting_.started_by, names,
                      meeting_.patience.count() / 1000));
      next += kSayInterval;
    }
    wait(std::min(next, deadline));
  }
}

std::string JoinedHosts::missing() const {
  std::vector<int> indices;
  std::vector<std::string> names;
  for (std::size_t i = 1; i < members_.size(); ++i) {
    if (members_[i].dialled) continue;
    indices.push_back(static_cast<int>(i));
    if (!meeting_.nodes.empty()) names.push_back(meeting_.nodes[i]);
  }
  if (indices.empty()) return {};
  const std::string text = fmt::format("index {}", fold_ranks(indices));
  return names.empty() ? text : fmt::format("{} ({})", text, fmt::join(names, ", "));
}

std::string JoinedHosts::unique_name(const std::string& name, std::size_t index) const {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (i != index && members_[i].host.name == name) return fmt::format("{}#{}", name, index);
  }
  return name;
}

void JoinedHosts::add(DialledAgent agent) {
  const Introduction& introduction = agent.introduction;
  std::size_t index = 0;
  std::from_chars(introduction.name.data(), introduction.name.data() + introduction.name.size(),
                  index);
  if (index == 0 || index >= members_.size()) {
    twice_ =
        fmt::format("a process on {} says that it is index {}, and index 0 waits for {} in all",
                    introduction.host, introduction.name, meeting_.count);
    return;
  }
  Member& member = members_[index];
  if (member.dialled && is_there(*member.dialled)) {
    twice_ = fmt::format("two processes say that they are index {}, on {} and on {}", index,
                         member.dialled->introduction.host, introduction.host);
    return;  // closes the connection of the later one
  }
  member = {.host = {.name = unique_name(introduction.host, index),
                     .address = {},
                     .gpus = introduction.gpus,
                     .cores = introduction.cores,
                     .reach = Reach::joined},
            .dialled = std::move(agent),
            .lost = false};
}

void JoinedHosts::advance(Transport::Time now) {
  for (DialledAgent& agent : listener_.advance(now)) add(std::move(agent));
}

std::vector<Host> JoinedHosts::hosts() const {
  std::vector<Host> hosts;
  for (const Member& member : members_) {
    if (!member.lost) hosts.push_back(member.host);
  }
  return hosts;
}

void JoinedHosts::lose(const std::vector<std::string>& names) {
  for (Member& member : members_) {
    const bool named = std::ranges::find(names, member.host.name) != names.end();
    // It may be back already.
    if (named && !(member.dialled && is_there(*member.dialled))) {
      member.dialled.reset();
      member.lost = true;
    }
  }
}

std::vector<std::string> JoinedHosts::lost() const {
  std::vector<std::string> names;
  for (const Member& member : members_) {
    if (member.lost) names.push_back(member.host.name);
  }
  return names;
}

std::optional<Channel> JoinedHosts::take(const std::string& host) {
  for (Member& member : members_) {
    if (member.host.name != host || !member.dialled) continue;
    return welcome(*std::exchange(member.dialled, std::nullopt));
  }
  return std::nullopt;
}

std::optional<JoinedRole> join(const Machine& machine, const Variables& variables,
                               const RunAgent& run_agent, const Say& say) {
  const auto as_agent = [&](Meeting meeting) {
    return JoinedRole{.controller = nullptr,
                      .exit_code = serve(std::move(meeting), machine, run_agent, say)};
  };
  const auto as_controller = [&](DialListener listener, Meeting meeting) {
    return JoinedRole{.controller = std::make_shared<JoinedHosts>(machine, std::move(listener),
                                                                  std::move(meeting), say),
                      .exit_code = std::nullopt};
  };
  const StartedTasks tasks = started_tasks(variables);
  const std::optional<int> rank = pmix_rank();
  // An mpirun inside of pods has started this process; who sets DSTRAIN_INDEX means it.
  const bool by_pmix = rank && variables(join_variable::kIndex) == nullptr;
  const auto meeting = by_pmix ? std::nullopt : meeting_in_environment(variables);
  if (meeting) {
    if (meeting->index > 0) return as_agent(*meeting);
    DialListener listener(meeting->port, meeting->secret, static_cast<std::size_t>(meeting->count));
    return as_controller(std::move(listener), *meeting);
  }
  if (tasks.count == 1 || (!rank && tasks.count == 0)) return std::nullopt;
  if (!rank) {
    throw Error(ErrorKind::usage,
                fmt::format("{}={}: so many `dstrain launch` were started, which cannot find each "
                            "other: there is no PMIx",
                            tasks.variable, tasks.count),
                kOneEach);
  }
  if (*rank > 0) {
    // The helper ends before: an agent takes every child for one of the ranks'.
    Meeting told = [&] { return meet_by_pmix(std::nullopt, variables).first; }();
    return as_agent(std::move(told));
  }
  DialListener listener;
  // The helper answers for index 0 until everybody has fetched the address.
  auto [found, helper] = meet_by_pmix(listener.target(), variables);
  if (found.count == 1) return std::nullopt;
  return as_controller(std::move(listener), std::move(found));
}

Allocation allocate_joined(const JoinedHosts& joined, const HostRequest& request) {
  Allocation allocation;
  allocation.hosts = joined.hosts();
  const int num_hosts = joined.count();
  const int share = std::max(1, (request.ranks + num_hosts - 1) / num_hosts);
  int slots = 0;
  for (Host& host : allocation.hosts) {
    if (request.cpu_ranks) host.gpus = 0;
    host.slots = host.gpus > 0 ? host.gpus : share;
    slots += host.slots;
  }
  if (request.ranks > slots && joined.lost().empty()) {
    throw Error(ErrorKind::usage,
                fmt::format("--ranks {}: the {} hosts of {} have {} GPUs", request.ranks, num_hosts,
                            joined.started_by(), slots),
                "start more processes, one on each further node");
  }
  return allocation;
}

std::unique_ptr<Transport> make_joined_transport(std::vector<NodeHost> nodes,
                                                 std::shared_ptr<JoinedHosts> hosts) {
  return std::make_unique<JoinedTransport>(std::move(nodes), std::move(hosts));
}

}  // namespace dstrain::launcher
