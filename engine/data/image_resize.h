#pragma once

#include <cstdint>
#include <span>

#include "engine/data/image_decode.h"

namespace dstrain {

/// Scales the shorter side of `image` to `side` and cuts the middle square into `pixels` [side,
/// side, 3]. Triangle filter that widens with the reduction (bilinear with antialiasing); a copy
/// where the size already fits.
void resize_center_square(const RgbImage& image, int side, std::span<std::uint8_t> pixels);

}  // namespace dstrain
