#include "launcher/doctor/inspect_hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/clock.h"
#include "launcher/doctor/reach_peers.h"

namespace dstrain::launcher {
namespace {

constexpr int kPings = 3;
constexpr double kClockLimit = 0.5;

/// Lets the agents try to reach each other once every one of them listens or has failed. Their
/// visits end together, since a port closes with its agent.
class PairTest {
 public:
  explicit PairTest(std::size_t num_hosts)
      : tried_(choose_peers(static_cast<int>(num_hosts))), sides_(num_hosts) {}

  [[nodiscard]] bool wanted() const { return sides_.size() > 1; }
  [[nodiscard]] const std::vector<std::vector<int>>& tried() const { return tried_; }

  void listens(std::size_t host, Channel& channel, ListeningAgent where) {
    sides_[host].channel = &channel;
    sides_[host].where = std::move(where);
    sides_[host].settled = true;
    if (all(&Side::settled)) begin();
  }
  /// The host has told whom it reaches; all visits end with the pong after the last one's.
  void answered(std::size_t host) {
    sides_[host].answered = true;
    if (!all(&Side::answered)) return;
    over_ = true;
    for (const Side& side : sides_) {
      if (side.channel != nullptr) side.channel->send(Ping{system_time_ns()});
    }
  }
  void gone(std::size_t host) {
    const bool waited_for = !sides_[host].settled;
    sides_[host].channel = nullptr;
    sides_[host].settled = true;
    if (waited_for && all(&Side::settled)) begin();
    if (!over_) answered(host);
  }
  [[nodiscard]] bool over() const { return over_; }

 private:
  struct Side {
    Channel* channel = nullptr;  ///< while its agent lives and listens
    ListeningAgent where;
    bool settled = false;
    bool answered = false;
  };

  [[nodiscard]] bool all(bool Side::* state) const {
    return std::all_of(sides_.begin(), sides_.end(),
                       [state](const Side& side) { return side.*state; });
  }

  void begin() {
    // An agent on this machine has no connection: others see it where they see us.
    std::string ours;
    for (const Side& side : sides_) {
      if (side.channel != nullptr && ours.empty()) ours = side.where.peer_address;
    }
    for (std::size_t i = 0; i < sides_.size(); ++i) {
      if (sides_[i].channel == nullptr) continue;
      ReachPeers order;
      for (const int peer : tried_[i]) {
        const Side& side = sides_[static_cast<std::size_t>(peer)];
        const std::string& address = side.where.address.empty() ? ours : side.where.address;
        if (side.channel != nullptr && side.where.port != 0 && !address.empty())
          order.peers.push_back({peer, address, side.where.port});
      }
      sides_[i].channel->send(order);
    }
  }

  std::vector<std::vector<int>> tried_;
  std::vector<Side> sides_;
  bool over_ = false;
};

/// Asks one agent for its clock, then for its inspection.
class Inspector final : public HostVisit {
 public:
  Inspector(HostInspection& result, const InspectHost& request, PairTest& pairs, std::size_t host)
      : result_(result), request_(request), pairs_(pairs), host_(host) {
    request_.listen = pairs.wanted();
  }

  void greeted(Channel& channel) override { channel.send(Ping{system_time_ns()}); }

  [[nodiscard]] bool take(Channel& channel, const Frame& frame) override {
    if (frame.type == FrameType::pong) {
      if (pairs_.over()) return true;
      pong(channel, unpack<Pong>(frame));
    } else if (frame.type == FrameType::listening) {
      pairs_.listens(host_, channel, unpack<ListeningAgent>(frame));
    } else if (frame.type == FrameType::reached) {
      result_.unreached = unpack<ReachedPeers>(frame).problems;
      pairs_.answered(host_);
    } else if (frame.type == FrameType::inspection) {
      result_.inspection = inspection_from_json(unpack<InspectionAnswer>(frame).json);
      result_.findings = examine(*result_.inspection);
      return !pairs_.wanted();
    }
    return false;
  }

  void fail(HostProblem problem) override {
    // With its own answer in, it only waited for the others.
    if (!result_.inspection) result_.problem = std::move(problem);
    pairs_.gone(host_);
  }

 private:
  void pong(Channel& channel, const Pong& message) {
    const std::int64_t now = system_time_ns();
    const double round_trip = static_cast<double>(now - message.ping_ns) * 1e-9;
    if (result_.round_trip_s < 0 || round_trip < result_.round_trip_s) {
      result_.round_trip_s = round_trip;
      // Halved before they are added: two clocks together do not fit into 63 bits for ever.
      const std::int64_t middle = message.ping_ns + (now - message.ping_ns) / 2;
      result_.clock_offset_s = static_cast<double>(message.clock_ns - middle) * 1e-9;
    }
    if (++pongs_ < kPings) {
      channel.send(Ping{system_time_ns()});
    } else {
      channel.send(request_);
    }
  }

  HostInspection& result_;
  InspectHost request_;
  PairTest& pairs_;
  std::size_t host_;
  int pongs_ = 0;
};

void sort_findings(HostInspection& host) {
  std::stable_sort(host.findings.begin(), host.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.level > b.level; });
}

void add_pair_findings(std::vector<HostInspection>& hosts,
                       const std::vector<std::vector<int>>& tried) {
  std::vector<UnreachedPair> pairs;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    names.push_back(hosts[i].host.name);
    // What a host says may name any number.
    std::erase_if(hosts[i].unreached, [&hosts](const PeerProblem& problem) {
      return problem.node < 0 || problem.node >= static_cast<int>(hosts.size());
    });
    for (const PeerProblem& problem : hosts[i].unreached)
      pairs.push_back({static_cast<int>(i), problem.node, problem.kind});
  }
  for (PairFinding& each : explain_pairs(std::move(pairs), tried, names)) {
    HostInspection& host = hosts[static_cast<std::size_t>(each.host)];
    host.findings.push_back(std::move(each.finding));
    sort_findings(host);
  }
}

}  // namespace

std::vector<HostInspection> inspect_hosts(const std::vector<Host>& hosts, Transport& transport,
                                          const InspectHostsOptions& options) {
  std::vector<HostInspection> results(hosts.size());
  std::vector<std::unique_ptr<HostVisit>> inspectors;
  std::vector<HostVisit*> visits;
  PairTest pairs(hosts.size());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    results[i].host = hosts[i];
    inspectors.push_back(std::make_unique<Inspector>(results[i], options.request, pairs, i));
    visits.push_back(inspectors.back().get());
  }
  visit_hosts(transport, visits, {.build = options.build, .answer_limit = options.answer_limit});
  for (HostInspection& result : results) check_clock(result);
  add_pair_findings(results, pairs.tried());
  return results;
}

void check_clock(HostInspection& host) {
  if (host.round_trip_s < 0) return;
  const double sure = std::abs(host.clock_offset_s) - host.round_trip_s / 2;
  if (sure <= kClockLimit) return;
  host.findings.push_back(
      {Level::warning,
       fmt::format("clock is {:.1f} s {} this machine's", std::abs(host.clock_offset_s),
                   host.clock_offset_s > 0 ? "ahead of" : "behind"),
       "start chrony or another NTP client on both"});
  sort_findings(host);
}

}  // namespace dstrain::launcher
