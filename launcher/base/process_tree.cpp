#include "launcher/base/process_tree.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <optional>
#include <set>
#include <thread>

#include "engine/base/job_environment.h"
#include "engine/base/system_files.h"

namespace dstrain::launcher {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPollPause{2};

struct Stat {
  std::string name;
  char state = '?';
  pid_t parent = 0;
};

std::optional<Stat> read_stat(pid_t pid) {
  const std::string text = read_system_file(fmt::format("/proc/{}/stat", pid));
  // The name may hold anything, parentheses too: the fields begin after the last one.
  const auto open = text.find('(');
  const auto close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 2 >= text.size())
    return std::nullopt;
  Stat stat;
  stat.name = text.substr(open + 1, close - open - 1);
  std::istringstream fields(text.substr(close + 2));
  fields >> stat.state >> stat.parent;
  return stat;
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> processes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (failed != std::errc{} || end != name.data() + name.size()) continue;
    processes.push_back(pid);
  }
  return processes;
}

}  // namespace

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const pid_t pid : all_processes()) {
    const auto stat = read_stat(pid);
    if (stat && stat->parent == parent) children.push_back(pid);
  }
  return children;
}

bool has_environment(pid_t pid, const std::string& entry) {
  const std::string text = '\0' + read_system_file(fmt::format("/proc/{}/environ", pid));
  return text.find('\0' + entry + '\0') != std::string::npos;
}

std::string describe_process(pid_t pid) {
  const auto stat = read_stat(pid);
  if (!stat) return fmt::format("{} (gone)", pid);
  return fmt::format("{} ({}, state {})", pid, stat->name, stat->state);
}

Subreaper::Subreaper() {
  ::prctl(PR_GET_CHILD_SUBREAPER, &previous_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Subreaper::~Subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, previous_); }

std::vector<pid_t> kill_all_children(std::chrono::milliseconds limit, int& num_killed) {
  const auto deadline = Clock::now() + limit;
  std::set<pid_t> killed;
  while (true) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const std::vector<pid_t> children = children_of(::getpid());
    for (const pid_t child : children) {
      ::kill(child, SIGKILL);
      if (killed.insert(child).second) ++num_killed;
    }
    if (children.empty() || Clock::now() >= deadline) return children;
    std::this_thread::sleep_for(kPollPause);
  }
}

void kill_orphans(const std::vector<pid_t>& ranks, const std::string& entry,
                  std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  const auto reap = [deadline](pid_t pid) {
    while (::waitpid(pid, nullptr, WNOHANG) == 0 && Clock::now() < deadline)
      std::this_thread::sleep_for(kPollPause);
  };
  // Once a rank is reaped, its own children have become ours. One that the agent had reaped is no
  // child: no wait.
  for (const pid_t rank : ranks) reap(rank);
  for (bool found = true; found && Clock::now() < deadline;) {
    found = false;
    for (const pid_t child : children_of(::getpid())) {
      if (!has_environment(child, entry)) continue;
      ::kill(child, SIGKILL);
      reap(child);
      found = true;
    }
  }
}

int sweep_run(const std::string& run_directory, std::chrono::milliseconds limit) {
  const std::string entry = fmt::format("{}={}", job_environment::kRunDirectory, run_directory);
  const auto deadline = Clock::now() + limit;
  std::set<pid_t> killed;
  while (true) {
    bool found = false;
    for (const pid_t pid : all_processes()) {
      if (pid == ::getpid() || !has_environment(pid, entry)) continue;
      const auto stat = read_stat(pid);
      if (!stat || stat->state == 'Z') continue;
      ::kill(pid, SIGKILL);
      killed.insert(pid);
      found = true;
    }
    if (!found || Clock::now() >= deadline) return static_cast<int>(killed.size());
    std::this_thread::sleep_for(kPollPause);
  }
}

}  // namespace dstrain::launcher
