#include "launcher/inspect_hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace dstrain::launcher {
namespace {

constexpr int kPings = 3;
constexpr double kClockLimit = 0.5;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Asks one agent for its clock, then for its inspection.
class Inspector final : public HostVisit {
 public:
  Inspector(HostInspection& result, const InspectHost& request)
      : result_(result), request_(request) {}

  void greeted(Channel& channel) override { channel.send(FrameType::ping, pack_ping(now_ns())); }

  [[nodiscard]] bool take(Channel& channel, const Frame& frame) override {
    if (frame.type == FrameType::pong) pong(channel, unpack_pong(frame));
    if (frame.type != FrameType::inspection) return false;
    result_.inspection = inspection_from_json(frame.payload);
    result_.findings = judge(*result_.inspection);
    return true;
  }

  void fail(HostProblem problem) override { result_.problem = std::move(problem); }

 private:
  void pong(Channel& channel, const PongMessage& message) {
    const std::int64_t now = now_ns();
    const double round_trip = static_cast<double>(now - message.ping_ns) * 1e-9;
    if (result_.round_trip_s < 0 || round_trip < result_.round_trip_s) {
      result_.round_trip_s = round_trip;
      // Halved before they are added: two clocks together do not fit into 63 bits for ever.
      const std::int64_t middle = message.ping_ns + (now - message.ping_ns) / 2;
      result_.clock_offset_s = static_cast<double>(message.clock_ns - middle) * 1e-9;
    }
    if (++pongs_ < kPings) {
      channel.send(FrameType::ping, pack_ping(now_ns()));
    } else {
      channel.send(FrameType::inspect, pack(request_));
    }
  }

  HostInspection& result_;
  const InspectHost& request_;
  int pongs_ = 0;
};

}  // namespace

std::vector<HostInspection> inspect_hosts(const std::vector<Host>& hosts, Transport& transport,
                                          const InspectHostsOptions& options) {
  std::vector<HostInspection> results(hosts.size());
  std::vector<std::unique_ptr<HostVisit>> inspectors;
  std::vector<HostVisit*> visits;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    results[i].host = hosts[i];
    inspectors.push_back(std::make_unique<Inspector>(results[i], options.request));
    visits.push_back(inspectors.back().get());
  }
  visit_hosts(transport, visits, {.build = options.build, .answer_limit = options.answer_limit});
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
