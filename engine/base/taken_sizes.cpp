#include "engine/base/taken_sizes.h"

#include <fmt/format.h>

#include "engine/base/error.h"

namespace dstrain {

std::string TakenSizes::text() const {
  if (unit == 1) return fmt::format("at most {}", max);
  return fmt::format("a multiple of {}{}", unit, max > 0 ? fmt::format(" up to {}", max) : "");
}

std::string TakenSizes::nearest(std::int64_t size) const {
  const std::int64_t below = size / unit * unit, above = below + unit;
  if (max > 0 && above > max) return fmt::format("{}", max / unit * unit);
  return below > 0 ? fmt::format("{} or {}", below, above) : fmt::format("{}", above);
}

void require_taken(const TakenSizes& taken, std::int64_t size, std::string_view kernel) {
  if (!taken.has(size))
    throw Error(ErrorKind::internal, fmt::format("{}: size {}", kernel, size),
                fmt::format("{} works on a GPU", taken.text()));
}

}  // namespace dstrain
