#include "engine/kernels/experts/kernels.h"

namespace dstrain::kernels::reference {

void place_by_expert(const PlaceByExpert& a) {
  std::int32_t place = 0;
  for (std::int64_t e = 0; e < a.experts; ++e) {
    std::int64_t first = 0;  // row of the block
    for (std::int64_t i = 0; i < a.ranks * a.experts; first += a.counts[i++]) {
      if (i % a.experts != e) continue;
      for (std::int64_t row = first; row < first + a.counts[i]; ++row) a.place[row] = place++;
    }
  }
}

}  // namespace dstrain::kernels::reference
