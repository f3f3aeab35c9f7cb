#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/draft/draft.h"

namespace dstrain::draft {

/// The lines of `optimizer`, but the warm-up. Rates are those of the recipes of the tree; `global`
/// samples are a batch.
[[nodiscard]] std::vector<DraftLine> optimizer_lines(const Facts& facts, const Choices& choices,
                                                     int global);

}  // namespace dstrain::draft
