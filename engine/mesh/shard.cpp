#include "engine/mesh/shard.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/units.h"

namespace dstrain {

Range intersect(Range a, Range b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Range even_part(std::int64_t total, std::int64_t parts, std::int64_t index) {
  DSTRAIN_CHECK(total >= 0 && parts >= 1 && index >= 0 && index < parts,
                "even_part needs total >= 0 and 0 <= index < parts");
  // The first total % parts pieces are one larger.
  const std::int64_t base = total / parts;
  const std::int64_t larger = total % parts;
  const std::int64_t begin = index * base + std::min(index, larger);
  return {begin, begin + base + (index < larger ? 1 : 0)};
}

FlatGroup::FlatGroup(const std::vector<std::int64_t>& sizes, int shards)
    : sizes_(sizes), shards_(shards) {
  DSTRAIN_CHECK(shards >= 1, "a flat group needs at least one shard");
  std::int64_t next = 0;
  for (const std::int64_t size : sizes_) {
    DSTRAIN_CHECK(size >= 0, "a tensor of negative size");
    offsets_.push_back(next);
    next += round_up(size, kFlatAlignment);
  }
  padded_ = round_up(next, kFlatAlignment * shards);
}

Range FlatGroup::shard(int shard) const {
  DSTRAIN_CHECK(shard >= 0 && shard < shards_, "no such shard");
  return {shard * shard_size(), (shard + 1) * shard_size()};
}

Range FlatGroup::owned(std::size_t tensor, int shard) const {
  const std::int64_t start = offset(tensor);
  const Range part = intersect(this->shard(shard), {start, start + size(tensor)});
  return part.empty() ? Range{0, 0} : Range{part.begin - start, part.end - start};
}

}  // namespace dstrain
