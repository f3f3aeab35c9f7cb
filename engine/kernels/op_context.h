#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>

#include "engine/kernels/parameter.h"

/// Parameters in an autograd context: kept by address, since the block that owns them outlives its
/// graph.
namespace dstrain::ops {

inline void keep(torch::autograd::AutogradContext* context, const char* key, Parameter* parameter) {
  context->saved_data[key] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(parameter));
}

[[nodiscard]] inline Parameter& kept(torch::autograd::AutogradContext* context, const char* key) {
  return *reinterpret_cast<Parameter*>(
      static_cast<std::intptr_t>(context->saved_data.at(key).toInt()));
}

[[nodiscard]] inline Parameter* kept_or_null(torch::autograd::AutogradContext* context,
                                             const char* key) {
  return reinterpret_cast<Parameter*>(
      static_cast<std::intptr_t>(context->saved_data.at(key).toInt()));
}

}  // namespace dstrain::ops
