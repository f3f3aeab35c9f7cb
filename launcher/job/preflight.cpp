#include "launcher/job/preflight.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/words.h"
#include "launcher/doctor/inspect_hosts.h"

namespace dstrain::launcher {
namespace {

/// Why no job can run there, and what to do.
std::string fault_of(const HostInspection& host) {
  if (host.problem) {
    const HostProblem& problem = *host.problem;
    return fmt::format("{}: {}{}", kind_name(problem.kind), problem.text,
                       problem.hint.empty() ? "" : " (" + problem.hint + ")");
  }
  const Finding& finding = host.findings.front();  // the worst
  return finding.advice.empty() ? finding.text
                                : fmt::format("{} ({})", finding.text, finding.advice);
}

}  // namespace

Allocation without_bad_hosts(Allocation allocation, int ranks, Transport& transport,
                             const std::string& build, Console& console) {
  InspectHostsOptions how{.build = build, .request = {}};
  how.request.working_directory = std::filesystem::current_path().string();
  const std::vector<HostInspection> seen = inspect_hosts(allocation.hosts, transport, how);
  std::vector<std::string> bad;
  std::size_t warned = 0;
  for (const HostInspection& host : seen) {
    if (host.usable()) {
      warned += worst(host.findings) == Level::warning ? 1 : 0;
      continue;
    }
    bad.push_back(host.host.name);
    console.lines(fmt::format("preflight: {} is left out: {}", host.host.name, fault_of(host)));
  }
  std::erase_if(allocation.hosts, [&bad](const Host& host) {
    return std::ranges::find(bad, host.name) != bad.end();
  });
  int slots = 0;
  for (const Host& host : allocation.hosts) slots += host.slots;
  if (slots < ranks) {
    throw Error(
        ErrorKind::hosts,
        fmt::format("preflight: {} of {} hosts cannot be used, and the others have {} of {} "
                    "slots",
                    bad.size(), seen.size(), slots, ranks),
        "give spare hosts beyond --ranks, or ask for fewer ranks");
  }
  console.lines(fmt::format("preflight: {} of {} hosts can be used{}", allocation.hosts.size(),
                            seen.size(),
                            warned == 0 ? ""
                                        : fmt::format(", {} with warnings (`dstrain doctor` says "
                                                      "which)",
                                                      warned)));
  return allocation;
}

}  // namespace dstrain::launcher
