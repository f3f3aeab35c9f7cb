#pragma once

#include <algorithm>

#include "engine/recipe/datasets.h"

namespace dstrain {

/// Whether all data sets that `data` names are text of files: what `dstrain data` tokenises and
/// shows.
[[nodiscard]] inline bool all_text(const DataConfig& data) {
  return std::ranges::all_of(sets_of(data), [](const DataConfig& one) {
    return dataset_row(one.name).modality == Modality::text;
  });
}

}  // namespace dstrain
