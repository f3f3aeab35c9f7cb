#include "engine/checkpoint/saved_layout.h"

#include "engine/base/index.h"

namespace dstrain {

Range saved_range(const SavedGroup& group, SavedPlace place) {
  const std::int64_t size = group.padded / group.shards;
  const Range part = even_part(size, group.holders, place.holder);
  return {part.begin + place.shard * size, part.end + place.shard * size};
}

std::int64_t saved_elements(const SavedParameter& parameter) {
  std::int64_t elements = 0;
  for (const Piece& part : parameter.parts) elements += part.numel();
  return elements;
}

}  // namespace dstrain
