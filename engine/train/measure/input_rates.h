#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/bench/input_tables.h"
#include "engine/data/dataset.h"
#include "engine/device/device.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// Rates of the recipe's training images with each number of loader threads: `seconds` for whole
/// batches on `device`, which `channels` and `image_size` describe, and as long for the stages of
/// an image. Before, the files of the first batches are in the page cache; the others are where the
/// machine has them. Error{data} names a damaged file where data.bad_record says stop.
[[nodiscard]] std::vector<bench::InputRate> measure_input_rates(
    const Recipe& recipe, const std::shared_ptr<const ImageDataset>& images, int image_size,
    const DeviceFacts& device, std::span<const int> threads, double seconds);

}  // namespace dstrain
