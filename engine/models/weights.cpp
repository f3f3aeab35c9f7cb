#include "engine/models/weights.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"

namespace dstrain {

void WeightSource::read(const Parameter& parameter, Range range, std::span<float> out) const {
  DSTRAIN_CHECK(std::cmp_equal(range.size(), out.size()),
                "a range of " + parameter.parts.at(0).name + " and its buffer differ");
  for (const auto& [box, offset] : slices_of(parameter.parts, range)) {
    for (std::int64_t done = 0; done < box.numel(); done += box.run_length()) {
      read_whole(parameter, box, box.whole_index(done),
                 out.subspan(to_index(offset - range.begin + done), to_index(box.run_length())));
    }
  }
}

}  // namespace dstrain
