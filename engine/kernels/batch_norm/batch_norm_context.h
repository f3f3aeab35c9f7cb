#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <string>

#include "engine/kernels/batch_norm/ops_batch_norm.h"
#include "engine/kernels/op_context.h"

/// Batch norms of operators: their checks, and what an autograd context keeps of them.
namespace dstrain::ops {

/// Throws unless x is [B, H, W, C] with C as the call's tensors have it, and `residual`, where
/// defined, like x and beside no other activation than ReLU.
void check_batch_norm(const at::Tensor& x, const BatchNormCall& call, const at::Tensor& residual);

/// What backward needs of a call; several of them in a context differ by `name`.
struct KeptBatchNorm {
  Parameter& weight;
  Parameter& bias;
  Communicator* ranks;
  bool fixed;
  at::Tensor valid;
  ImageActivation activation;

  [[nodiscard]] bool trains() const { return weight.trainable || bias.trainable; }
  /// Whether sums over the image are needed: for its parameters, or through its statistics.
  [[nodiscard]] bool needs_sums(bool for_input) const { return trains() || (for_input && !fixed); }
  /// With whom the statistics are shared.
  [[nodiscard]] Communicator* sharing() const { return fixed ? nullptr : ranks; }
};

inline void keep_call(torch::autograd::AutogradContext* context, const BatchNormCall& call,
                      const std::string& name = "norm") {
  keep(context, (name + ".weight").c_str(), &call.weight);
  keep(context, (name + ".bias").c_str(), &call.bias);
  keep_address(context, (name + ".ranks").c_str(), call.ranks);
  context->saved_data[name + ".fixed"] = call.fixed;
  context->saved_data[name + ".valid"] = call.valid;
  context->saved_data[name + ".activation"] = static_cast<std::int64_t>(call.activation);
}

[[nodiscard]] inline KeptBatchNorm kept_call(torch::autograd::AutogradContext* context,
                                             const std::string& name = "norm") {
  const auto& data = context->saved_data;
  return {.weight = kept(context, (name + ".weight").c_str()),
          .bias = kept(context, (name + ".bias").c_str()),
          .ranks = reinterpret_cast<Communicator*>(
              static_cast<std::intptr_t>(data.at(name + ".ranks").toInt())),
          .fixed = data.at(name + ".fixed").toBool(),
          .valid = data.at(name + ".valid").toTensor(),
          .activation = static_cast<ImageActivation>(data.at(name + ".activation").toInt())};
}

}  // namespace dstrain::ops
