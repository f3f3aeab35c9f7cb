#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/json.h"
#include "engine/base/units.h"
#include "launcher/doctor/inspect_hosts.h"

namespace dstrain::launcher {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kMaxNames = 8;

/// "dstrain 0.1.0 (commit 1a2b3c)\ncompilers: ..." -> "0.1.0 (commit 1a2b3c)".
std::string short_build(const std::string& build) {
  std::string line = build.substr(0, build.find('\n'));
  constexpr std::string_view kName = "dstrain ";
  if (line.starts_with(kName)) line.erase(0, kName.size());
  return line;
}

/// "8 x NVIDIA H200", with every kind that there is.
std::string gpu_names(const Inspection& at) {
  std::vector<std::pair<std::string, int>> kinds;
  for (const GpuFacts& gpu : at.gpus) {
    const auto same = std::find_if(kinds.begin(), kinds.end(),
                                   [&](const auto& kind) { return kind.first == gpu.name; });
    if (same == kinds.end()) {
      kinds.emplace_back(gpu.name, 1);
    } else {
      ++same->second;
    }
  }
  std::string text;
  for (const auto& [name, count] : kinds)
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, name);
  return text.empty() ? "none" : text;
}

std::string min_free(const Inspection& at) {
  std::int64_t min = -1;
  for (const GpuFacts& gpu : at.gpus) {
    const std::int64_t free = gpu.memory_bytes - gpu.used_bytes;
    min = min < 0 ? free : std::min(min, free);
  }
  return min < 0 ? "-" : format_bytes(min);
}

std::string free_disk(const Inspection& at) {
  for (const DiskFacts& disk : at.disks) {
    if (disk.purpose == "working directory") {
      if (!disk.exists) return "no folder";
      return disk.free_bytes < 0 ? "-" : format_bytes(disk.free_bytes);
    }
  }
  return "-";
}

std::string format_offset(const HostInspection& host) {
  if (host.round_trip_s < 0) return "-";
  const double offset = host.clock_offset_s;
  // What the ping cannot tell from zero is zero.
  if (std::abs(offset) <= host.round_trip_s / 2) return "0 ms";
  return std::abs(offset) < 1 ? fmt::format("{:+.0f} ms", offset * 1e3)
                              : fmt::format("{:+.1f} s", offset);
}

using Row = std::array<std::string, 9>;

Row table_row(const HostInspection& host) {
  Row row;
  row.fill("-");
  row[0] = host.host.name;
  row[1] = host.problem ? kind_name(host.problem->kind) : level_name(worst(host.findings));
  if (!host.problem && worst(host.findings) == Level::note) row[1] = "ok";
  if (!host.inspection) return row;
  const Inspection& at = *host.inspection;
  row[2] = short_build(at.build);
  row[3] = at.driver.empty() ? "-" : at.driver;
  row[4] = gpu_names(at);
  row[5] = min_free(at);
  row[6] = at.locked_bytes < 0 ? "no limit" : format_bytes(at.locked_bytes);
  row[7] = free_disk(at);
  row[8] = format_offset(host);
  return row;
}

/// Hosts without an agent before errors before warnings.
int badness(const HostInspection& host) {
  return host.problem ? 4 : static_cast<int>(worst(host.findings));
}

std::string join_names(const std::vector<std::string>& names) {
  if (names.size() <= kMaxNames) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kMaxNames, ", "),
                     names.size() - kMaxNames);
}

/// In the order of their first appearance.
class Groups {
 public:
  void add(const std::string& key, const std::string& host) {
    for (auto& [known, hosts] : groups_) {
      if (known == key) return hosts.push_back(host);
    }
    groups_.push_back({key, {host}});
  }
  [[nodiscard]] const std::vector<std::pair<std::string, std::vector<std::string>>>& list() const {
    return groups_;
  }

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> groups_;
};

std::string render_table(const std::vector<HostInspection>& hosts) {
  std::vector<Row> rows = {{"host", "state", "dstrain", "driver", "GPUs", "GPU memory free",
                            "locked memory", "disk free", "clock"}};
  for (const HostInspection& host : hosts) rows.push_back(table_row(host));
  std::array<std::size_t, std::tuple_size_v<Row>> widths{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += fmt::format("{:<{}}", row[i], i + 1 < row.size() ? widths[i] + 2 : 0);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string render_findings(const std::vector<HostInspection>& hosts) {
  Groups groups;
  for (const HostInspection& host : hosts) {
    if (host.problem) {
      groups.add(fmt::format("{}: {}\n  hint: {}", kind_name(host.problem->kind),
                             host.problem->text, host.problem->hint),
                 host.host.name);
    }
    for (const Finding& finding : host.findings) {
      groups.add(fmt::format("{}: {}\n  hint: {}", level_name(finding.level), finding.text,
                             finding.advice),
                 host.host.name);
    }
  }
  std::string text;
  for (const auto& [what, names] : groups.list())
    text += fmt::format("{}: {}\n", join_names(names), what);
  return text;
}

/// Facts that should be the same on every host of a job.
std::vector<std::pair<std::string, std::string>> comparable(const Inspection& at) {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"dstrain", short_build(at.build)},
      {"architecture", at.arch},
      {"GPUs", gpu_names(at)},
      {"driver", at.driver.empty() ? "none" : at.driver}};
  for (const LibraryFacts& library : at.engine.libraries)
    facts.emplace_back(library.name, library.version.empty() ? "unknown" : library.version);
  return facts;
}

std::string render_differences(const std::vector<HostInspection>& hosts) {
  std::vector<std::pair<std::string, Groups>> facts;
  for (const HostInspection& host : hosts) {
    if (!host.inspection) continue;
    for (const auto& [name, value] : comparable(*host.inspection)) {
      auto fact = std::find_if(facts.begin(), facts.end(),
                               [&wanted = name](const auto& each) { return each.first == wanted; });
      if (fact == facts.end()) fact = facts.insert(facts.end(), {name, Groups()});
      fact->second.add(value, host.host.name);
    }
  }
  std::string text;
  for (const auto& [name, groups] : facts) {
    if (groups.list().size() < 2) continue;
    std::vector<std::string> parts;
    for (const auto& [value, names] : groups.list())
      parts.push_back(fmt::format("{} on {}", value, join_names(names)));
    text += fmt::format("differs: {}: {}\n", name, fmt::join(parts, "; "));
  }
  return text;
}

/// Which cards and driver one machine has, and whether ranks can use them.
std::string first_line(const HostInspection& host) {
  if (!host.inspection) return "";
  const Inspection& at = *host.inspection;
  if (at.gpu_nodes == 0 && at.gpus.empty()) return "no NVIDIA GPU: ranks run on the CPU\n\n";
  if (at.driver.empty())
    return fmt::format("{} GPUs and no driver that answers: they do not serve\n\n", at.gpu_nodes);
  return fmt::format("{}, driver {} for CUDA up to {}.{}: {}\n\n", gpu_names(at), at.driver,
                     at.driver_cuda / 1000, at.driver_cuda % 1000 / 10,
                     !host.usable()         ? "they do not serve, see below"
                     : at.gpus_visible == 0 ? "CUDA_VISIBLE_DEVICES hides them"
                                            : "they serve");
}

std::vector<HostInspection> worst_first(std::vector<HostInspection> hosts) {
  std::stable_sort(hosts.begin(), hosts.end(),
                   [](const auto& a, const auto& b) { return badness(a) > badness(b); });
  return hosts;
}

}  // namespace

std::string doctor_text(const std::vector<HostInspection>& unsorted) {
  const std::vector<HostInspection> hosts = worst_first(unsorted);
  std::string text = hosts.size() == 1 ? first_line(hosts.front()) : "";
  text += render_table(hosts);
  for (const std::string& part : {render_findings(hosts), render_differences(unsorted)}) {
    if (!part.empty()) text += "\n" + part;
  }
  const auto usable =
      std::count_if(hosts.begin(), hosts.end(), [](const auto& host) { return host.usable(); });
  text += fmt::format("\n{} of {} host{} can be used\n", usable, hosts.size(),
                      hosts.size() == 1 ? "" : "s");
  return text;
}

std::string doctor_json(const std::vector<HostInspection>& hosts, const nlohmann::json& measured) {
  Json list = Json::array();
  for (const HostInspection& host : hosts) {
    Json entry;
    entry["host"] = host.host.name;
    entry["usable"] = host.usable();
    if (host.problem) {
      entry["problem"] = {{"class", kind_name(host.problem->kind)},
                          {"text", host.problem->text},
                          {"hint", host.problem->hint}};
    }
    if (host.round_trip_s >= 0) {
      entry["round_trip_s"] = host.round_trip_s;
      entry["clock_offset_s"] = host.clock_offset_s;
    }
    entry["findings"] = Json::array();
    for (const Finding& finding : host.findings) {
      entry["findings"].push_back({{"level", level_name(finding.level)},
                                   {"text", finding.text},
                                   {"advice", finding.advice}});
    }
    entry["unreached"] = Json::array();
    for (const PeerProblem& peer : host.unreached) {
      entry["unreached"].push_back(
          {{"host", hosts[static_cast<std::size_t>(peer.node)].host.name}, {"class", peer.kind}});
    }
    if (host.inspection) entry["inspection"] = Json::parse(to_json(*host.inspection));
    list.push_back(std::move(entry));
  }
  Json whole{{"hosts", list}};
  if (!measured.is_null()) whole["measured"] = measured;
  return json_text(whole, 2) + "\n";
}

}  // namespace dstrain::launcher
