#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>

#include "engine/comm/communicator.h"
#include "engine/kernels/parameter.h"

/// Parameters and communicators in an autograd context: kept by address, since what owns them
/// outlives the graph.
namespace dstrain::ops {

template <class Kept>
void keep_address(torch::autograd::AutogradContext* context, const char* key, Kept* address) {
  context->saved_data[key] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(address));
}

template <class Kept>
[[nodiscard]] Kept* kept_address_or_null(torch::autograd::AutogradContext* context,
                                         const char* key) {
  return reinterpret_cast<Kept*>(static_cast<std::intptr_t>(context->saved_data.at(key).toInt()));
}

template <class Kept>
[[nodiscard]] Kept& kept_address(torch::autograd::AutogradContext* context, const char* key) {
  return *kept_address_or_null<Kept>(context, key);
}

inline void keep_ranks(torch::autograd::AutogradContext* context, Communicator* ranks) {
  keep_address(context, "ranks", ranks);
}

[[nodiscard]] inline Communicator& kept_ranks(torch::autograd::AutogradContext* context) {
  return kept_address<Communicator>(context, "ranks");
}

[[nodiscard]] inline Communicator* kept_ranks_or_null(torch::autograd::AutogradContext* context) {
  return kept_address_or_null<Communicator>(context, "ranks");
}

inline void keep(torch::autograd::AutogradContext* context, const char* key, Parameter* parameter) {
  keep_address(context, key, parameter);
}

[[nodiscard]] inline Parameter& kept(torch::autograd::AutogradContext* context, const char* key) {
  return kept_address<Parameter>(context, key);
}

[[nodiscard]] inline Parameter* kept_or_null(torch::autograd::AutogradContext* context,
                                             const char* key) {
  return kept_address_or_null<Parameter>(context, key);
}

}  // namespace dstrain::ops
