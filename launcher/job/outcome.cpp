#include "launcher/job/outcome.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>

#include "engine/base/error.h"
#include "engine/base/words.h"
#include "launcher/base/words.h"

namespace dstrain::launcher {
namespace {

ErrorKind kind_of_code(int code) {
  using enum ErrorKind;
  for (const ErrorKind kind : {usage, data, hosts, checkpoint, again, stop}) {
    if (exit_code(kind) == code) return kind;
  }
  return internal;
}

void report_leftovers(const std::vector<JobNode>& nodes, Console& console) {
  int leftovers = 0;
  for (const JobNode& node : nodes) {
    if (!node.done) continue;
    leftovers += node.done->num_leftovers;
    for (const std::string& process : node.done->unkillable) {
      console.lines(fmt::format("process {} on {} does not end even on SIGKILL: look at its host",
                                process, node.name()));
    }
  }
  if (leftovers > 0) {
    console.lines(fmt::format("killed {} process{} that the ranks had left behind", leftovers,
                              leftovers == 1 ? "" : "es"));
  }
}

/// Nodes that could not prepare, in their own words.
void throw_fault(const std::vector<JobNode>& nodes) {
  std::string message;
  std::string hint;
  int code = 0;
  for (const JobNode& node : nodes) {
    if (!node.fault) continue;
    if (!message.empty()) message += '\n';
    message += node.fault->message;
    hint = node.fault->hint;
    code = std::max(code, node.fault->exit_code);
  }
  if (code != 0) throw Error(kind_of_code(code), message, hint);
}

Outcome interrupted(Outcome outcome, const StopRequests& stops, Console& console) {
  const int number = stops.last_signal != 0 ? stops.last_signal : SIGTERM;
  console.lines(fmt::format("ended by {}{}", signal_name(number),
                            stops.count >= 2 ? "" : " before the ranks could save"));
  outcome.kind = Outcome::Kind::interrupted;
  outcome.exit_code = 128 + number;
  return outcome;
}

Outcome failed(Outcome outcome, FailureReport report, std::int64_t memory_bytes) {
  outcome.kind = Outcome::Kind::failed;
  report.memory_bytes = memory_bytes;
  outcome.exit_code = report.root.rank < 0 || report.kind == FailureKind::hang
                          ? report.root.error_code
                          : exit_code(report.root);
  outcome.report = std::move(report);
  return outcome;
}

/// "32 hosts were lost, n0032 .. n0063 (no sign of life for 25 s)": one cause, a switch perhaps.
std::string several_lost(const std::vector<const JobNode*>& lost) {
  constexpr std::size_t kMaxNames = 4;
  std::vector<std::string> names;
  for (const JobNode* node : lost) names.push_back(node->name());
  return fmt::format("{} hosts were lost, {} ({})", lost.size(),
                     names.size() <= kMaxNames
                         ? fmt::format("{}", fmt::join(names, ", "))
                         : fmt::format("{} .. {}", names.front(), names.back()),
                     lost.front()->lost);
}

/// `lost`: one node at least.
FailureReport lost_report(const std::vector<const JobNode*>& lost, const AttemptEnd& end,
                          std::int64_t step) {
  const JobNode& node = *lost.front();
  FailureReport report;
  report.kind = node.is_local() ? FailureKind::agent : FailureKind::host;
  report.root.rank = -1;
  report.root.host = node.name();
  report.root.step = step;
  report.root.signal = node.lost_signal;
  report.root.error_code = node.fault ? node.fault->exit_code : exit_code(ErrorKind::again);
  report.root.error = node.lost;
  report.others = fold_ends(end.ends, -1);
  if (node.fault || node.is_local()) {
    report.summary = node.fault
                         ? fmt::format("the agent on {} cannot go on ({}); its ranks were ended",
                                       node.name(), node.lost)
                         : fmt::format("the agent on {} was lost ({}); its ranks were ended",
                                       node.name(), node.lost);
    return report;
  }
  std::vector<int> ranks;
  for (const JobNode* each : lost) {
    for (int i = 0; i < each->placement.num_ranks; ++i)
      ranks.push_back(each->placement.first_rank + i);
  }
  const std::string who = lost.size() == 1 ? fmt::format("host {} was lost ({}); its agent ends",
                                                         node.name(), node.lost)
                                           : several_lost(lost) + "; their agents end";
  report.summary =
      fmt::format("{} rank{} {} by {} within {} s", who, plural(ranks.size()), fold_ranks(ranks),
                  lost.size() == 1 ? "itself" : "themselves", end.lease.count() / 1000);
  return report;
}

}  // namespace

Outcome conclude(const AttemptEnd& end, Console& console) {
  report_leftovers(end.nodes, console);
  Outcome outcome;
  outcome.started = end.started;
  outcome.step = end.step;
  for (const RankEnd& rank : end.ends) outcome.step = std::max(outcome.step, rank.step);
  std::vector<const JobNode*> lost;
  for (const JobNode& node : end.nodes) {
    if (!node.lost.empty()) outcome.lost_hosts.push_back(node.name());
    if (!node.lost.empty()) lost.push_back(&node);
    if (node.problem) outcome.problems.emplace_back(node.name(), *node.problem);
  }
  if (end.stops.count >= 2 || (end.stops.count == 1 && !end.started))
    return interrupted(outcome, end.stops, console);
  // Faults of an agent that had already run ranks are told as a failure of its own.
  if (!end.started) throw_fault(end.nodes);
  if (!outcome.problems.empty()) {
    outcome.kind = Outcome::Kind::unreachable;
    outcome.exit_code = exit_code(ErrorKind::hosts);
    return outcome;
  }

  // The rank's own cause, then a hang, then a lost node; what is left are echoes of something else.
  const auto root = find_root(end.ends);
  std::optional<FailureReport> report;
  if (root && classify(*root) < EndClass::late) {
    report = make_report(*root, end.ends);
  } else if (end.hang) {
    report = make_hang_report(*end.hang, end.ends);
  } else if (!lost.empty()) {
    report = lost_report(lost, end, outcome.step);
  } else if (root) {
    report = make_report(*root, end.ends);
  }
  if (report) return failed(outcome, std::move(*report), end.memory_bytes);

  const bool all_clean = std::all_of(end.ends.begin(), end.ends.end(), [](const RankEnd& rank) {
    return classify(rank) == EndClass::clean;
  });
  const auto world_size = static_cast<std::size_t>(end.nodes.front().job.world_size);
  if (!all_clean || end.ends.size() != world_size) return interrupted(outcome, end.stops, console);
  if (end.stops.count > 0) {
    outcome.kind = Outcome::Kind::saved;
    outcome.exit_code = end.stops.preempted ? exit_code(ErrorKind::again) : 0;
  }
  return outcome;
}

}  // namespace dstrain::launcher
