#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/transport/transport.h"

namespace dstrain::launcher {

/// A short talk with an agent that runs no ranks: it is asked something, answers and ends.
class HostVisit {
 public:
  using Clock = std::chrono::steady_clock;

  HostVisit() = default;
  virtual ~HostVisit() = default;
  HostVisit(const HostVisit&) = delete;
  HostVisit& operator=(const HostVisit&) = delete;

  /// The agent said hello; the frames are in launcher/protocol/protocol.h.
  virtual void greeted(Channel& channel) = 0;
  /// True when this frame is the answer, and the visit is over.
  [[nodiscard]] virtual bool take(Channel& channel, const Frame& frame) = 0;
  /// There will be no answer.
  virtual void fail(HostProblem problem) = 0;
};

struct VisitOptions {
  std::string build;
  std::chrono::milliseconds answer_limit{90'000};  ///< from an open channel to the answer
  /// When every host that has not answered is given up, whatever it is at.
  std::optional<HostVisit::Clock::time_point> deadline = {};
};

/// Starts an agent on each host, all at once, holds `visits[node]` with it and ends it. Each visit
/// has taken its answer or failed afterwards; never throws for what is wrong with a host.
void visit_hosts(Transport& transport, const std::vector<HostVisit*>& visits,
                 const VisitOptions& options);

}  // namespace dstrain::launcher
