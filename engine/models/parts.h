#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "engine/base/error.h"
#include "engine/kernels/parameter.h"
#include "engine/mesh/shard.h"

namespace dstrain {

[[nodiscard]] inline std::int64_t num_elements(const NamedShape& part) {
  std::int64_t product = 1;
  for (const std::int64_t size : part.shape) product *= size;
  return product;
}

/// Calls visit(part, begin, piece) for each part of `parameter` that `range` (flat, over all parts)
/// touches: `piece` is where the part's elements from `begin` on go in `out`.
template <class Visit>
void for_each_part(const Parameter& parameter, Range range, std::span<float> out, Visit visit) {
  DSTRAIN_CHECK(range.begin >= 0 && range.end <= parameter.numel() && range.size() >= 0 &&
                    static_cast<std::size_t>(range.size()) == out.size(),
                "a range outside of " + parameter.parts.at(0).name);
  std::int64_t offset = 0;
  for (const NamedShape& part : parameter.parts) {
    const std::int64_t numel = num_elements(part);
    const Range shared = intersect(range, {offset, offset + numel});
    if (!shared.empty()) {
      visit(part, shared.begin - offset,
            out.subspan(static_cast<std::size_t>(shared.begin - range.begin),
                        static_cast<std::size_t>(shared.size())));
    }
    offset += numel;
  }
}

}  // namespace dstrain
