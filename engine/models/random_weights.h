#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "engine/kernels/parameter.h"

namespace dstrain {

/// The value that all elements start with; nothing where they are drawn.
[[nodiscard]] std::optional<float> same_value(Init init, double init_std);

/// Elements [begin, begin + out.size()) of the tensor `name`, drawn anew: a pure function of (seed,
/// name, element).
void draw_weights(std::int64_t seed, const std::string& name, Init init, double init_std,
                  std::int64_t begin, std::span<float> out);
/// The same bits of a box of a tensor, whose `init` is one of the random ones, into memory of the
/// GPU.
void draw_weights_on_gpu(std::int64_t seed, const Piece& box, Init init, double init_std,
                         float* out, cudaStream_t stream);

}  // namespace dstrain
