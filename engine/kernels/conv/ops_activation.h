#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/conv/image_activation.h"

namespace dstrain::ops {

/// The activation alone, of any shape; saves z.
[[nodiscard]] at::Tensor image_activation(const at::Tensor& z, ImageActivation activation);

}  // namespace dstrain::ops
