#pragma once

#include <memory>

#include "engine/data/dataset.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// What random images are like, as the model has it; 0: as photographs of Food-101, in 101 classes,
/// which are never more, and 3 channels.
struct RandomKind {
  int classes = 0, channels = 0;
  int frames = 1;  ///< images of a sample
};
[[nodiscard]] RandomKind random_kind(const Recipe& recipe);

/// open_images() of data.name random.
[[nodiscard]] std::unique_ptr<ImageDataset> open_random_images(const DataConfig& data, Split split,
                                                               int image_size, std::int64_t seed,
                                                               const RandomKind& kind);

/// dataset_facts(), where random images are of this kind.
[[nodiscard]] DatasetFacts facts_of_kind(const DataConfig& data, int image_size,
                                         const RandomKind& kind);

}  // namespace dstrain
