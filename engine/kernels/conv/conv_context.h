#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <vector>

#include "engine/kernels/conv/conv.h"

/// A convolution's shape in an autograd context; several differ by `name`.
namespace dstrain::ops {

inline void keep_shape(torch::autograd::AutogradContext* context, const ConvShape& shape,
                       const char* name = "shape") {
  context->saved_data[name] = std::vector<std::int64_t>{
      shape.in, shape.out, shape.kernel, shape.stride, shape.before, shape.after, shape.groups};
}

[[nodiscard]] inline ConvShape kept_shape(torch::autograd::AutogradContext* context,
                                          const char* name = "shape") {
  const std::vector<std::int64_t> list = context->saved_data.at(name).toIntVector();
  return {list[0], list[1], list[2], list[3], list[4], list[5], list[6]};
}

}  // namespace dstrain::ops
