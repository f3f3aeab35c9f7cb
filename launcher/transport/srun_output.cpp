#include "launcher/transport/srun_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstring>

#include "engine/base/error.h"
#include "launcher/hosts/host_list.h"

namespace dstrain::launcher {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

/// " 9: text" -> 9, and `line` becomes "text"; -1 and unchanged for a line without a label.
int take_label(std::string_view& line) {
  const std::string_view text = trimmed(line);
  int task = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), task);
  const auto used = static_cast<std::size_t>(end - text.data());
  if (error != std::errc{} || task < 0 || text.substr(used, 1) != ":") return -1;
  line = trimmed(text.substr(used + 1));
  return task;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool has_text(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

void SrunOutput::add(std::string_view line) {
  std::string_view text = line;
  const int task = take_label(text);
  if (text.empty()) return;
  if (take_prefix(text, "slurmstepd-")) {  // "slurmstepd-h2: error: execve(): ..."
    const std::size_t colon = text.find(": ");
    if (colon == std::string_view::npos) return;
    Node& node = nodes_[std::string(text.substr(0, colon))];
    node.stepd_line = text.substr(colon + 2);
    if (task >= 0) node.task = task;
    return;
  }
  if (task >= 0) {
    task_lines_[task] = text;
    return;
  }
  if (!take_prefix(text, "srun: ")) return;
  if (has_text(text, "lacks support for cpu binding")) return;  // we ask for none
  const bool is_error = take_prefix(text, "error: ");
  if (has_text(text, ": task") && is_error) {
    add_ending(text);
    return;
  }
  own_line_ = text;
  if (has_text(text, "launch failed") || has_text(text, "Job step aborted")) aborted_ = true;
  if (!is_error) return;
  // "Task launch for StepId=2.0 failed on node h3: Communication connection failure"
  const std::size_t on = text.find("failed on node ");
  if (on != std::string_view::npos) {
    text.remove_prefix(on + std::strlen("failed on node "));
    const std::size_t colon = text.find(": ");
    if (colon == std::string_view::npos) return;
    nodes_[std::string(text.substr(0, colon))].launch_error = text.substr(colon + 2);
    return;
  }
  add_ending(text);
}

/// "h[1-2]: tasks 0-1: Exited with exit code 69"; "Node failure on h4".
void SrunOutput::add_ending(std::string_view text) {
  std::string_view list;
  std::string_view tasks;
  std::string_view ending;
  if (take_prefix(text, "Node failure on ")) {
    list = trimmed(text);
    ending = "Node failure";
  } else {
    const std::size_t first = text.find(": task");
    if (first == std::string_view::npos) return;
    const std::size_t second = text.find(": ", first + 2);
    if (second == std::string_view::npos) return;
    list = text.substr(0, first);
    tasks = text.substr(first + 2, second - first - 2);
    tasks.remove_prefix(std::min(tasks.size(), tasks.find(' ') + 1));
    ending = trimmed(text.substr(second + 2));
  }
  try {
    const std::vector<std::string> names = expand_node_list(list);
    for (const std::string& name : names) {
      nodes_[name].ending = ending;
      nodes_[name].ended_by_srun = aborted_;
    }
    // A single node with a single task: now its label is known, too.
    int task = -1;
    const auto [end, error] = std::from_chars(tasks.data(), tasks.data() + tasks.size(), task);
    if (names.size() == 1 && error == std::errc{} && end == tasks.data() + tasks.size()) {
      nodes_[names.front()].task = task;
    }
  } catch (const Error&) {
    // Words that look like a node list and are none: they stay in the log.
  }
}

std::string SrunOutput::ending(const std::string& node) const {
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? "" : found->second.ending;
}

std::string SrunOutput::last_line(const std::string& node) const {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return {};
  const Node& words = found->second;
  const auto said = task_lines_.find(words.task);
  if (words.task >= 0 && said != task_lines_.end()) return said->second;
  return !words.stepd_line.empty() ? words.stepd_line : words.launch_error;
}

std::optional<HostProblem> SrunOutput::problem(const std::string& node) const {
  using Kind = HostProblem::Kind;
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return std::nullopt;
  const Node& words = found->second;
  if (!words.launch_error.empty()) {
    return HostProblem{Kind::connection,
                       "Slurm could not start a task there: " + words.launch_error,
                       fmt::format("its slurmd does not answer: `scontrol show node {}`", node)};
  }
  const std::string_view stepd = words.stepd_line;
  if (has_text(stepd, "execve()")) {
    const bool missing = has_text(stepd, "No such file");
    return HostProblem{missing ? Kind::no_binary : Kind::cannot_run, std::string(stepd),
                       "install dstrain in a folder that every node has, under the same path"};
  }
  if (words.ending.empty() || words.ended_by_srun) return std::nullopt;
  if (words.ending == "Node failure") {
    return HostProblem{Kind::timeout, "Slurm calls it failed",
                       fmt::format("`scontrol show node {}` says why", node)};
  }
  const std::string said = last_line(node);
  const std::string text = said.empty()
                               ? "its agent ended: " + words.ending
                               : fmt::format("its agent ended ({}): {}", words.ending, said);
  if (has_text(said, "error while loading shared libraries") || has_text(said, "GLIBC")) {
    return HostProblem{Kind::cannot_run, text, "`dstrain doctor` there names what is missing"};
  }
  if (has_text(said, "cannot reach the controller")) {
    return HostProblem{Kind::timeout, text,
                       "open the network between the nodes: any TCP port, as MPI needs it too"};
  }
  return HostProblem{Kind::other, text, {}};
}

SrunEnding parse_srun_ending(std::string_view ending) {
  constexpr std::string_view kExited = "Exited with exit code ";
  SrunEnding result;
  if (ending.starts_with(kExited)) {
    const std::string_view digits = ending.substr(kExited.size());
    std::from_chars(digits.data(), digits.data() + digits.size(), result.exit_code);
    return result;
  }
  for (int number = 1; number < NSIG; ++number) {
    // "Killed", "Segmentation fault (core dumped)"
    if (!ending.empty() && ending.starts_with(::strsignal(number))) result.signal = number;
  }
  return result;
}

}  // namespace dstrain::launcher
