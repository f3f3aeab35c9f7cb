#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/hang/hang_report.h"
#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {

/// How much an ending says about the cause, strongest first. Within a class the earliest counts.
enum class EndClass {
  error,    ///< the rank recorded an error of its own
  signal,   ///< a signal that dstrain did not send
  exit,     ///< an exit code other than 0 and 75
  late,     ///< the same, but only after the ranks were being ended
  peer,     ///< exit code 75: by its own account a peer was lost
  stopped,  ///< ended by dstrain
  clean,    ///< exit code 0
};

[[nodiscard]] EndClass classify(const RankEnd& end);
/// Whether this ending must end the other ranks. Being stopped or clean is no failure.
[[nodiscard]] bool is_failure(EndClass end_class);

/// The rank that is to blame, or nothing when no rank failed.
[[nodiscard]] std::optional<RankEnd> find_root(const std::vector<RankEnd>& ends);

/// Exit code of the job for this root: the rank's own, or 128 + signal.
[[nodiscard]] int exit_code(const RankEnd& root);

/// What ended the job; failure.json has the name.
enum class FailureKind {
  error,
  signal,
  oom,      ///< memory of the host or the device
  replica,  ///< ranks that should hold the same weights do not
  exit,
  peer,
  hang,
  agent,  ///< the agent of this machine was lost
  host    ///< another host was lost
};
[[nodiscard]] const char* kind_name(FailureKind kind);

/// What `failure.json` and the console say.
struct FailureReport {
  RankEnd root;  ///< rank -1 when an agent or a host was lost
  FailureKind kind = FailureKind::error;
  std::string summary;              ///< one line: which rank, how, where
  std::vector<std::string> others;  ///< folded: "ranks 0, 2-7 were ended by dstrain"
  std::string advice = {};          ///< what to do, in one line
  std::string stacks = {};          ///< of a hang: for a person
  std::string stacks_json = {};     ///< the same as a JSON array; empty without
  std::int64_t memory_bytes = 0;    ///< highest that rank 0 had reported; 0: never
  std::int64_t planned_bytes = 0;   ///< of plan.json; 0: unknown
};
/// What to do about a failure, in one line; or empty, as for a lost host, where it depends on the
/// job's restarts.
[[nodiscard]] std::string advise(FailureKind kind, const RankEnd& root);
[[nodiscard]] FailureReport make_report(const RankEnd& root, const std::vector<RankEnd>& ends);
/// No rank failed, but one hangs.
[[nodiscard]] FailureReport make_hang_report(const HangReport& hang,
                                             const std::vector<RankEnd>& ends);
/// How the ranks beside `root`, which ended by the error `cause`, ended: one line per way.
[[nodiscard]] std::vector<std::string> fold_ends(const std::vector<RankEnd>& ends, int root,
                                                 const std::string& cause = {});
/// Whether another start of the job may go better: not for wrong recipes, data or a policy's stop.
[[nodiscard]] bool worth_restart(const FailureReport& report);
/// Content of failure.json; `code` is the exit code of the job.
[[nodiscard]] std::string to_json(const FailureReport& report, int code);
/// Several lines for a person; `log` is the file to read (empty: none), `num_lines` how many of its
/// last lines are repeated.
[[nodiscard]] std::string to_text(const FailureReport& report, const std::string& log,
                                  std::size_t num_lines);

}  // namespace dstrain::launcher
