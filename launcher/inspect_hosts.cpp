#include "launcher/inspect_hosts.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"

namespace dstrain::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPings = 3;
constexpr double kClockLimit = 0.5;
constexpr std::chrono::milliseconds kEndLimit{2000};

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Asks one agent.
class Visit {
 public:
  Visit(HostInspection& result, Transport& transport, int node)
      : result_(result), transport_(transport), node_(node) {}

  [[nodiscard]] bool done() const { return done_; }
  [[nodiscard]] bool talking() const { return channel_.has_value() && !done_; }
  [[nodiscard]] const Channel& channel() const { return *channel_; }
  [[nodiscard]] Clock::time_point deadline() const { return deadline_; }

  void open(AgentLink& link, const InspectHostsOptions& options) {
    if (link.problem) return fail(*link.problem);
    if (!link.channel) return;
    channel_ = std::move(link.channel);
    link.channel.reset();
    options_ = &options;
    deadline_ = Clock::now() + options.answer_limit;
    channel_->send(FrameType::hello, pack(Hello{.build = options.build}));
    take_frames();
  }

  void step() {
    channel_->flush();
    const bool open = channel_->receive();
    take_frames();
    if (!done_ && !open) return fail_ended();
    if (!done_ && Clock::now() >= deadline_) {
      fail({.kind = HostProblem::Kind::timeout,
            .text = "the agent started and did not answer in time",
            .hint = "look at the load of that host, and whether its file systems answer"});
    }
  }

 private:
  void take_frames() {
    try {
      while (!done_) {
        const auto frame = channel_->next();
        if (!frame) return;
        take(*frame);
      }
    } catch (const Error& error) {
      const bool version = error.kind() == ErrorKind::hosts && !greeted_;
      fail({.kind = version ? HostProblem::Kind::version : HostProblem::Kind::other,
            .text = error.what(),
            .hint = error.hint()});
    }
  }

  void take(const Frame& frame) {
    switch (frame.type) {
      case FrameType::hello:
        (void)unpack_hello(frame);
        greeted_ = true;
        channel_->send(FrameType::ping, pack_ping(now_ns()));
        return;
      case FrameType::pong:
        return pong(unpack_pong(frame));
      case FrameType::inspection:
        result_.inspection = inspection_from_json(frame.payload);
        result_.findings = judge(*result_.inspection);
        return finish();
      case FrameType::fault: {
        const FaultMessage fault = unpack_fault(frame);
        return fail({.kind = HostProblem::Kind::other, .text = fault.message, .hint = fault.hint});
      }
      default:
        return;  // what agents of a job send as well
    }
  }

  void pong(const PongMessage& message) {
    const std::int64_t now = now_ns();
    const double round_trip = static_cast<double>(now - message.ping_ns) * 1e-9;
    if (result_.round_trip_s < 0 || round_trip < result_.round_trip_s) {
      result_.round_trip_s = round_trip;
      // Halved before they are added: two clocks together do not fit into 63 bits for ever.
      const std::int64_t middle = message.ping_ns + (now - message.ping_ns) / 2;
      result_.clock_offset_s = static_cast<double>(message.clock_ns - middle) * 1e-9;
    }
    if (++pongs_ < kPings) {
      channel_->send(FrameType::ping, pack_ping(now_ns()));
    } else {
      channel_->send(FrameType::inspect, pack(options_->request));
    }
  }

  void fail_ended() {
    channel_.reset();
    const AgentEnding ending = transport_.end(node_, kEndLimit);
    HostProblem problem{.kind = HostProblem::Kind::cannot_run,
                        .text = "the agent ended before it had answered",
                        .hint = "run `dstrain agent </dev/null` there to see why"};
    if (ending.signal != 0) problem.text += fmt::format(" (signal {})", ending.signal);
    if (ending.signal == 0) problem.text += fmt::format(" (exit code {})", ending.exit_code);
    if (!ending.words.empty()) problem.text += ": " + ending.words;
    result_.problem = problem;
    done_ = true;
  }

  void fail(HostProblem problem) {
    result_.problem = std::move(problem);
    finish();
  }

  /// The agent ends by itself once its input is closed.
  void finish() {
    done_ = true;
    if (!channel_) return;
    channel_.reset();
    (void)transport_.end(node_, kEndLimit);
  }

  HostInspection& result_;
  Transport& transport_;
  int node_;
  const InspectHostsOptions* options_ = nullptr;
  std::optional<Channel> channel_;
  Clock::time_point deadline_;
  int pongs_ = 0;
  bool greeted_ = false;
  bool done_ = false;
};

int wait_ms(const std::vector<HostTransport>& transports, const std::vector<Visit>& visits) {
  std::optional<Clock::time_point> first;
  const auto consider = [&first](Clock::time_point time) {
    if (!first || time < *first) first = time;
  };
  for (const HostTransport& each : transports) {
    if (const auto deadline = each.transport->deadline()) consider(*deadline);
  }
  for (const Visit& visit : visits) {
    if (visit.talking()) consider(visit.deadline());
  }
  if (!first) return 1000;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*first - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 1000));
}

}  // namespace

std::vector<HostInspection> inspect_hosts(const std::vector<Host>& hosts,
                                          std::vector<HostTransport> transports,
                                          const InspectHostsOptions& options) {
  std::vector<HostInspection> results(hosts.size());
  std::vector<AgentLink> links(hosts.size());
  std::vector<Visit> visits;
  std::vector<std::size_t> nodes;
  for (std::size_t i = 0; i < hosts.size(); ++i) results[i].host = hosts[i];
  for (const HostTransport& each : transports) {
    for (const int node : each.nodes) {
      nodes.push_back(static_cast<std::size_t>(node));
      visits.emplace_back(results.at(nodes.back()), *each.transport, node);
    }
  }
  while (!std::all_of(visits.begin(), visits.end(), [](const Visit& v) { return v.done(); })) {
    std::vector<pollfd> fds;
    for (const HostTransport& each : transports) each.transport->add_polls(fds);
    for (const Visit& visit : visits) {
      if (!visit.talking()) continue;
      fds.push_back({visit.channel().in(), POLLIN, 0});
      if (visit.channel().wants_write()) fds.push_back({visit.channel().out(), POLLOUT, 0});
    }
    ::poll(fds.data(), fds.size(), wait_ms(transports, visits));
    for (const HostTransport& each : transports) each.transport->advance(links, Clock::now());
    for (std::size_t i = 0; i < visits.size(); ++i) {
      if (visits[i].talking()) {
        visits[i].step();
      } else if (!visits[i].done()) {
        visits[i].open(links[nodes[i]], options);
      }
    }
  }
  for (HostInspection& result : results) judge_clock(result);
  return results;
}

void judge_clock(HostInspection& host) {
  if (host.round_trip_s < 0) return;
  const double sure = std::abs(host.clock_offset_s) - host.round_trip_s / 2;
  if (sure <= kClockLimit) return;
  host.findings.push_back(
      {Level::warning,
       fmt::format("clock is {:.1f} s {} this machine's", std::abs(host.clock_offset_s),
                   host.clock_offset_s > 0 ? "ahead of" : "behind"),
       "start chrony or another NTP client on both"});
  std::stable_sort(host.findings.begin(), host.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.level > b.level; });
}

}  // namespace dstrain::launcher
