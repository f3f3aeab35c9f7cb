#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>

#include "engine/comm/communicator.h"

/// A communicator in an autograd context: kept by address, since it outlives the graphs of a run.
namespace dstrain::ops {

inline void keep_ranks(torch::autograd::AutogradContext* context, Communicator* ranks) {
  context->saved_data["ranks"] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(ranks));
}

[[nodiscard]] inline Communicator& kept_ranks(torch::autograd::AutogradContext* context) {
  return *reinterpret_cast<Communicator*>(
      static_cast<std::intptr_t>(context->saved_data.at("ranks").toInt()));
}

}  // namespace dstrain::ops
