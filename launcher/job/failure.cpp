#include "launcher/job/failure.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/host_memory.h"
#include "engine/base/json.h"
#include "engine/base/replica_words.h"
#include "engine/base/units.h"
#include "launcher/base/words.h"

namespace dstrain::launcher {
namespace {

/// When what this ending tells began: the error's own time where there is one, since an exit may
/// come much later.
std::int64_t cause_time(const RankEnd& end) {
  return end.error_time_ns > 0 ? end.error_time_ns : end.time_ns;
}

bool sent_by_us(const RankEnd& end) {
  if (end.stop_time_ns > 0) {
    return end.signal == SIGTERM || end.signal == SIGKILL || end.exit_code == 128 + SIGTERM;
  }
  return end.finish_asked && (end.signal == SIGTERM || end.exit_code == 128 + SIGTERM);
}

std::string how(const RankEnd& end) {
  if (end.signal == 0) return fmt::format("exit code {}", end.exit_code);
  return fmt::format("killed by signal {} ({})", end.signal, signal_name(end.signal));
}

std::string where(const RankEnd& end) {
  std::string text;
  if (end.step >= 0) text += fmt::format(" at step {}", end.step);
  if (!end.action.empty()) text += fmt::format(" in {}", end.action);
  return text;
}

FailureKind kind_of(const RankEnd& root) {
  switch (classify(root)) {
    case EndClass::error:
      if (root.error.starts_with(kWrongReplica) || root.error.starts_with(kReplicasDiffer))
        return FailureKind::replica;
      return root.error.find("out of memory") != std::string::npos ? FailureKind::oom
                                                                   : FailureKind::error;
    case EndClass::signal:
      return root.out_of_memory && root.signal == SIGKILL ? FailureKind::oom : FailureKind::signal;
    case EndClass::late:
      return root.signal != 0 ? FailureKind::signal : FailureKind::exit;
    case EndClass::peer:
      return FailureKind::peer;
    case EndClass::exit:
    case EndClass::stopped:  // these two are no failures, and no failure's root
    case EndClass::clean:
      return FailureKind::exit;
  }
  return FailureKind::exit;
}

}  // namespace

const char* kind_name(FailureKind kind) {
  switch (kind) {
    case FailureKind::error:
      return "error";
    case FailureKind::signal:
      return "signal";
    case FailureKind::oom:
      return "oom";
    case FailureKind::replica:
      return "replica";
    case FailureKind::exit:
      return "exit";
    case FailureKind::peer:
      return "peer";
    case FailureKind::hang:
      return "hang";
    case FailureKind::agent:
      return "agent";
    case FailureKind::host:
      return "host";
  }
  return "";
}

std::string advise(FailureKind kind, const RankEnd& root) {
  if (kind == FailureKind::oom && !root.out_of_memory &&
      !root.error.starts_with(kHostOutOfMemory)) {
    return "device memory: `dstrain plan` shows what takes it; lower batch.micro, recompute, or "
           "shard "
           "further with parallel.zero.stage";
  }
  if (kind == FailureKind::oom) {
    return "host memory: fewer ranks or loader threads per host, a smaller model or batch.micro, "
           "or a "
           "larger limit of the control group";
  }
  if (kind == FailureKind::replica) {
    return "look at memory, GPU and processor of that host (`dstrain doctor`); --resume auto goes "
           "on "
           "from the last checkpoint, whose states were compared before they were saved";
  }
  if (kind == FailureKind::hang) {
    return "look at the rank that is named first: its stack says what it waits for; --hang-timeout "
           "SECONDS changes the limit";
  }
  return "";
}

EndClass classify(const RankEnd& end) {
  const int again = exit_code(ErrorKind::again);
  const bool before_stop = end.stop_time_ns == 0;
  if (end.error_time_ns > 0 && end.error_code != again &&
      (before_stop || end.error_time_ns < end.stop_time_ns)) {
    return EndClass::error;
  }
  if (sent_by_us(end)) return EndClass::stopped;
  if (end.signal == 0 && end.exit_code == 0) return EndClass::clean;
  if (end.signal == 0 && end.exit_code == again) return EndClass::peer;
  if (!before_stop) return EndClass::late;
  return end.signal != 0 ? EndClass::signal : EndClass::exit;
}

bool is_failure(EndClass end_class) { return end_class < EndClass::stopped; }

std::optional<RankEnd> find_root(const std::vector<RankEnd>& ends) {
  const auto key = [](const RankEnd& end) { return std::pair(classify(end), cause_time(end)); };
  const auto first =
      std::min_element(ends.begin(), ends.end(),
                       [&key](const RankEnd& a, const RankEnd& b) { return key(a) < key(b); });
  if (first == ends.end() || !is_failure(classify(*first))) return std::nullopt;
  return *first;
}

int exit_code(const RankEnd& root) {
  // A rank that had named its error was on its way to this code when it was ended.
  if (classify(root) == EndClass::error && (root.signal != 0 || root.exit_code == 0) &&
      root.stop_time_ns > 0) {
    return root.error_code;
  }
  if (root.signal != 0) return 128 + root.signal;
  return root.exit_code != 0 ? root.exit_code : root.error_code;
}

std::vector<std::string> fold_ends(const std::vector<RankEnd>& ends, int root,
                                   const std::string& cause) {
  std::vector<std::string> lines;
  std::map<std::string, std::vector<int>> groups;
  for (const RankEnd& end : ends) {
    if (end.rank == root) continue;
    switch (classify(end)) {
      using enum EndClass;
      case clean:
        groups[end.stop_time_ns > 0 ? "ended by dstrain" : "had ended with exit code 0"].push_back(
            end.rank);
        break;
      case stopped:
        groups["ended by dstrain"].push_back(end.rank);
        break;
      case peer:
        groups["lost a peer (exit code 75)"].push_back(end.rank);
        break;
      case error:
        groups[end.error == cause ? "the same error"
               : end.error.starts_with(kDeviceOutOfMemory) && cause.starts_with(kDeviceOutOfMemory)
                   ? std::string("out of memory, too")
                   : "error: " + end.error]
            .push_back(end.rank);
        break;
      case signal:
      case exit:
      case late:
        groups[how(end)].push_back(end.rank);
        break;
    }
  }
  for (const auto& [text, ranks] : groups) {
    lines.push_back(
        fmt::format("rank{} {}: {}", ranks.size() == 1 ? "" : "s", fold_ranks(ranks), text));
  }
  return lines;
}

FailureReport make_report(const RankEnd& root, const std::vector<RankEnd>& ends) {
  FailureReport report{.root = root, .kind = kind_of(root), .summary = {}, .others = {}};
  std::string cause;
  if (report.kind == FailureKind::error || report.kind == FailureKind::replica ||
      (report.kind == FailureKind::oom && !root.error.empty())) {
    cause = fmt::format("failed{}: {} ({})", where(root), root.error, how(root));
  } else if (report.kind == FailureKind::oom) {
    cause = fmt::format("was killed by the kernel for memory{}{} (signal 9, SIGKILL)", where(root),
                        root.memory_limit_bytes > 0
                            ? fmt::format(": the processes on {} share {}", root.host,
                                          format_bytes(root.memory_limit_bytes))
                            : "");
  } else if (report.kind == FailureKind::peer) {
    cause = fmt::format("lost a peer{}: {} ({})", where(root),
                        root.error.empty() ? "no rank left another cause" : root.error, how(root));
  } else {
    cause = fmt::format("failed{}: {}{}", where(root), how(root),
                        root.signal != 0 ? ", not sent by dstrain" : "");
  }
  report.summary = fmt::format("rank {} {}", root.rank, cause);

  report.others = fold_ends(ends, root.rank, root.error);
  report.advice = advise(report.kind, root);
  return report;
}

FailureReport make_hang_report(const HangReport& hang, const std::vector<RankEnd>& ends) {
  FailureReport report;
  report.kind = FailureKind::hang;
  report.root.rank = hang.root.rank;
  report.root.host = hang.root.host;
  report.root.pid = hang.root.pid;
  report.root.step = hang.root.step;
  report.root.action = hang.root.action;
  report.root.collective = describe_collective(hang.root);
  report.root.error = hang.summary;
  report.root.error_code = exit_code(ErrorKind::again);
  report.summary = hang.summary;
  report.stacks = hang.stacks;
  report.stacks_json = hang.stacks_json;
  report.others = fold_ends(ends, hang.root.rank);
  report.advice = advise(report.kind, report.root);
  return report;
}

bool worth_restart(const FailureReport& report) {
  if (report.root.rank < 0 || report.kind == FailureKind::hang ||
      report.kind == FailureKind::signal || report.kind == FailureKind::replica)
    return true;
  const int code = exit_code(report.root);
  using enum ErrorKind;
  for (const ErrorKind kind : {usage, data, hosts, checkpoint, stop}) {
    if (code == exit_code(kind)) return false;
  }
  return true;
}

std::string to_json(const FailureReport& report, int code) {
  const RankEnd& root = report.root;
  nlohmann::ordered_json json;
  auto& cause = json["root"];
  cause["kind"] = kind_name(report.kind);
  cause["rank"] = root.rank >= 0 ? nlohmann::ordered_json(root.rank) : nullptr;
  cause["host"] = root.host;
  cause["pid"] = root.pid;
  const bool ended = root.signal == 0 && report.kind != FailureKind::hang;
  cause["exit_code"] = ended ? nlohmann::ordered_json(root.exit_code) : nullptr;
  cause["signal"] = root.signal != 0 ? nlohmann::ordered_json(root.signal) : nullptr;
  if (root.signal != 0) cause["signal_name"] = signal_name(root.signal);
  cause["step"] = root.step >= 0 ? nlohmann::ordered_json(root.step) : nullptr;
  cause["action"] = root.action;
  cause["collective"] = root.collective;
  cause["error"] = root.error;
  cause["time_s"] = static_cast<double>(cause_time(root)) * 1e-9;
  json["exit_code"] = code;
  json["summary"] = report.summary;
  json["advice"] = report.advice;
  json["others"] = report.others;
  const auto bytes = [](std::int64_t value) {
    return value > 0 ? nlohmann::ordered_json(value) : nullptr;
  };
  json["memory_bytes"] = {{"planned", bytes(report.planned_bytes)},
                          {"reported", bytes(report.memory_bytes)},
                          {"host_limit", bytes(root.memory_limit_bytes)}};
  if (!report.stacks_json.empty())
    json["ranks"] = nlohmann::ordered_json::parse(report.stacks_json, nullptr, false);
  json["last_lines"] = root.last_lines;
  // Ranks may print anything: bytes that are no UTF-8 must not spoil the report.
  return json_text(json, 2) + "\n";
}

std::string to_text(const FailureReport& report, const std::string& log, std::size_t num_lines) {
  std::string text = report.summary + "\n";
  const RankEnd& root = report.root;
  if (root.rank >= 0) {
    text += fmt::format("  on {}, pid {}{}{}\n", root.host, root.pid,
                        log.empty() ? "" : "; log: ", log);
  }
  if (!root.collective.empty()) text += fmt::format("  last collective: {}\n", root.collective);
  if (report.planned_bytes > 0 && report.memory_bytes > 0) {
    text += fmt::format("  memory: planned {}, highest reported {}\n",
                        format_bytes(report.planned_bytes), format_bytes(report.memory_bytes));
  }
  text += report.stacks;
  const auto& lines = root.last_lines;
  for (std::size_t i = lines.size() - std::min(num_lines, lines.size()); i < lines.size(); ++i) {
    // The error itself stands above.
    if (!root.error.empty() && lines[i] == "error: " + root.error) continue;
    text += fmt::format("  | {}\n", lines[i]);
  }
  for (const std::string& other : report.others) text += fmt::format("  {}\n", other);
  if (!report.advice.empty()) text += fmt::format("  what to do: {}\n", report.advice);
  return text;
}

}  // namespace dstrain::launcher
