#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "launcher/doctor/inspect.h"
#include "launcher/protocol/protocol.h"
#include "launcher/transport/transport.h"
#include "launcher/transport/visit_hosts.h"

namespace dstrain::launcher {

/// What is known about one host: a problem, or what its agent saw.
struct HostInspection {
  Host host;
  std::optional<HostProblem> problem;
  std::optional<Inspection> inspection;
  double round_trip_s = -1;            ///< of the fastest ping
  double clock_offset_s = 0;           ///< its clock less ours; known to half the round trip
  std::vector<PeerProblem> unreached;  ///< other hosts, by index, to which TCP did not come through
  std::vector<Finding> findings;  ///< examine() and what only the controller can tell, worst first

  /// No agent, or a finding that no job can live with.
  [[nodiscard]] bool usable() const { return !problem && worst(findings) < Level::error; }
};

struct InspectHostsOptions {
  std::string build;
  InspectHost request;
  std::chrono::milliseconds answer_limit{90'000};  ///< from an open channel to the answer
};

/// Starts an agent on each host, all at once, asks it for its clock and its inspection, and ends
/// it. Meanwhile the hosts try to reach each other by TCP. Never throws for what is wrong with a
/// host.
[[nodiscard]] std::vector<HostInspection> inspect_hosts(const std::vector<Host>& hosts,
                                                        Transport& transport,
                                                        const InspectHostsOptions& options);

/// Findings that compare the clock of a host with ours; beyond half a second reports of several
/// hosts cannot be put in order.
void check_clock(HostInspection& host);

/// One table over all hosts, the bad ones first, then what was found with advice (once for all
/// hosts that share it) and where the hosts differ. Ends in a newline; safe for a terminal.
[[nodiscard]] std::string doctor_text(const std::vector<HostInspection>& hosts);
/// One JSON object with everything; `measured`, where it is not null, is its value of that name.
[[nodiscard]] std::string doctor_json(const std::vector<HostInspection>& hosts,
                                      const nlohmann::json& measured = nullptr);

}  // namespace dstrain::launcher
