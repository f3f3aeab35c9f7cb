#pragma once

#include <cstdint>
#include <memory>

#include "engine/data/dataset.h"

namespace dstrain {

/// `samples` of the images, from each class in turn as long as it has some: the first of an order
/// of all that `seed` draws, so that a smaller subset is part of a larger one.
[[nodiscard]] std::unique_ptr<ImageDataset> subset_of(std::unique_ptr<ImageDataset> images,
                                                      std::int64_t samples, std::int64_t seed);

}  // namespace dstrain
