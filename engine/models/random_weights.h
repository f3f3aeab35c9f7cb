#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/kernels/parameter.h"

namespace dstrain {

/// Elements [begin, begin + out.size()) of the tensor `name`, drawn anew: a pure function of (seed,
/// name, element).
void draw_weights(std::int64_t seed, const std::string& name, Init init, double init_std,
                  std::int64_t begin, std::span<float> out);

}  // namespace dstrain
