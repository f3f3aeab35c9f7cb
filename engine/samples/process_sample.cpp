#include "engine/samples/process_sample.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include "engine/base/system_files.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

struct Stat {
  pid_t pid = 0;
  pid_t parent = 0;
  double cpu_s = 0;
  std::int64_t virtual_bytes = 0;
  std::int64_t resident_bytes = 0;
};

/// proc(5), /proc/PID/stat; nothing where the process has ended.
std::optional<Stat> read_stat(pid_t pid) {
  const std::vector<std::string> fields = read_process_fields(std::to_string(pid));
  constexpr std::size_t kParent = 4, kUserTime = 14, kSystemTime = 15, kVirtual = 23,
                        kResident = 24;
  if (fields.size() <= kResident - kFirstProcessField) return {};
  const auto number = [&](std::size_t field) {
    return std::strtoll(fields[field - kFirstProcessField].c_str(), nullptr, 10);
  };
  return Stat{.pid = pid,
              .parent = static_cast<pid_t>(number(kParent)),
              .cpu_s = static_cast<double>(number(kUserTime) + number(kSystemTime)) /
                       static_cast<double>(::sysconf(_SC_CLK_TCK)),
              .virtual_bytes = number(kVirtual),
              .resident_bytes = number(kResident) * ::sysconf(_SC_PAGESIZE)};
}

std::vector<Stat> all_processes() {
  std::vector<Stat> all;
  std::error_code error;
  for (fs::directory_iterator i("/proc", error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename();
    pid_t pid = 0;
    const auto [last, wrong] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (wrong != std::errc() || last != name.data() + name.size()) continue;
    if (const auto stat = read_stat(pid)) all.push_back(*stat);
  }
  return all;
}

}  // namespace

std::vector<pid_t> rank_processes() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const pid_t parent = ::getppid();
  const std::vector<Stat> all = all_processes();
  std::vector<pid_t> found;
  for (const Stat& stat : all) {
    std::error_code ended;
    const bool sibling = stat.parent == parent &&
                         fs::read_symlink(fmt::format("/proc/{}/exe", stat.pid), ended) == program;
    if (stat.pid == ::getpid() || sibling) found.push_back(stat.pid);
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const Stat& stat : all) {
      if (stat.parent == found[i] && std::ranges::find(found, stat.pid) == found.end())
        found.push_back(stat.pid);
    }
  }
  return found;
}

ProcessSample sample_processes(const std::vector<pid_t>& processes) {
  ProcessSample sum;
  for (const pid_t pid : processes) {
    const auto stat = read_stat(pid);
    if (!stat) continue;
    sum.cpu_s += stat->cpu_s;
    sum.resident_bytes += stat->resident_bytes;
    sum.virtual_bytes += stat->virtual_bytes;
  }
  return sum;
}

namespace cpu_log {

std::string line(double elapsed_s, double cpu_share, const ProcessSample& sample) {
  constexpr double kMb = 1024.0 * 1024.0;
  return fmt::format("{:12.3f} {:12.3f} {:12.3f} {:12.3f}\n", elapsed_s, cpu_share,
                     static_cast<double>(sample.resident_bytes) / kMb,
                     static_cast<double>(sample.virtual_bytes) / kMb);
}

}  // namespace cpu_log
}  // namespace dstrain
