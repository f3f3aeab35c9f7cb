#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>

#include "engine/kernels/activation/gate.h"
#include "engine/kernels/ops.h"

/// The activation of a gate in an autograd context.
namespace dstrain::ops {

inline void keep_gate(torch::autograd::AutogradContext* context, GateActivation gate) {
  context->saved_data["gate"] = static_cast<std::int64_t>(gate);
}

[[nodiscard]] inline GateActivation kept_gate(torch::autograd::AutogradContext* context) {
  return static_cast<GateActivation>(context->saved_data.at("gate").toInt());
}

}  // namespace dstrain::ops
