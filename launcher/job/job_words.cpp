#include "launcher/job/job_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "engine/base/words.h"

namespace dstrain::launcher {

std::string describe_start(const Placement& placement) {
  std::vector<std::string> names;
  bool gpus = false;
  for (const NodePlacement& node : placement.nodes) {
    names.push_back(node.host.name);
    gpus = gpus || node.host.gpus > 0;
  }
  constexpr std::size_t kMaxNames = 4;
  const std::string hosts =
      names.size() <= kMaxNames
          ? fmt::format("{}", fmt::join(names, ", "))
          : fmt::format("{} hosts ({} .. {})", names.size(), names.front(), names.back());
  const bool local = placement.nodes.front().host.reach == Reach::local;
  return fmt::format("{} rank{} on {}{}", placement.world_size, plural(placement.world_size), hosts,
                     !local ? ""
                     : gpus ? " (GPU)"
                            : " (CPU)");
}

}  // namespace dstrain::launcher
