#pragma once

#include <string_view>

#include "engine/program/cost.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// Error{usage}, with the key that decides it and what would do, where blocks have a size that the
/// kernels of their GPU do not take (BlockCost::misfits). `otherwise`: what works without a GPU.
void require_gpu_sizes(const ModelConfig& config, const ModelCost& cost,
                       std::string_view otherwise = "parallel.backend: gloo trains on CPUs");

}  // namespace dstrain
