#include "engine/train/session/agree.h"

#include <fmt/format.h>

#include <algorithm>

namespace dstrain {

std::int64_t smallest_on_all(std::int64_t own, const std::string& what, const World& world,
                             RankRecordFile& record) {
  if (world.size == 1) return own;
  const auto key = [&](int rank) { return fmt::format("{}/{}", what, rank); };
  const std::string smallest_key = what + "/smallest";
  world.store->set(key(world.rank), std::to_string(own));
  const CollectiveScope scope(&record, "agree", world.size);
  if (world.rank == 0) {
    std::int64_t smallest = own;
    for (int rank = 1; rank < world.size; ++rank)
      smallest =
          std::min<std::int64_t>(smallest, std::stoll(world.store->get(key(rank), kPatience)));
    world.store->set(smallest_key, std::to_string(smallest));
  }
  return std::stoll(world.store->get(smallest_key, kPatience));
}

GpuLimits limits_on_all(const World& world, RankRecordFile& record) {
  GpuLimits limits = world.device.limits;
  limits.bf16_products =
      smallest_on_all(limits.bf16_products ? 1 : 0, "bf16_products", world, record) > 0;
  return limits;
}

}  // namespace dstrain
