#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/base/console.h"
#include "launcher/hang/hang_report.h"
#include "launcher/job/failure.h"
#include "launcher/job/job_node.h"
#include "launcher/job/stop_requests.h"
#include "launcher/transport/host_problem.h"

namespace dstrain::launcher {

/// How one start of the job ended.
struct Outcome {
  enum class Kind {
    finished,     ///< every rank ended with 0
    saved,        ///< asked to stop, saved, ended with 0
    interrupted,  ///< ended by signals before it could save
    failed,       ///< `report` says why
    unreachable   ///< no rank was started; `problems` says why
  };
  Kind kind = Kind::finished;
  int exit_code = 0;
  bool started = false;  ///< the ranks were
  std::optional<FailureReport> report;
  std::vector<std::pair<std::string, HostProblem>> problems;  ///< host and what is wrong there
  std::vector<std::string> lost_hosts;                        ///< not to be used again in this job
  std::int64_t step = -1;  ///< highest step that any rank reached
};

/// What the controller knows when all agents have ended.
struct AttemptEnd {
  const std::vector<JobNode>& nodes;
  const std::vector<RankEnd>& ends;
  const std::optional<HangReport>& hang;
  const StopRequests& stops;
  bool started = false;           ///< the ranks were
  std::int64_t step = -1;         ///< highest that rank 0 reported
  std::int64_t memory_bytes = 0;  ///< highest that rank 0 reported
  std::chrono::milliseconds lease{};
};

/// Weighs the causes. Throws Error with an agent's own words when it could not prepare.
[[nodiscard]] Outcome conclude(const AttemptEnd& end, Console& console);

}  // namespace dstrain::launcher
