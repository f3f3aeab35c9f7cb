#pragma once

#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <string>

#include "engine/kernels/activation/ops_dropout.h"
#include "engine/kernels/ops.h"

/// A mask of dropout in an autograd context, and what it multiplies samples by.
namespace dstrain::ops {

/// `which`: of several masks of one context.
inline void keep_mask(torch::autograd::AutogradContext* context, const DropMask& mask,
                      const std::string& which = {}) {
  context->saved_data["dropout" + which] = mask.share;
  if (mask.share == 0) return;
  context->saved_data["seed" + which] = mask.seed;
  context->saved_data["place" + which] = static_cast<std::int64_t>(mask.place);
  context->saved_data["rows" + which] = mask.rows;
  context->saved_data["whole_columns" + which] = mask.whole_columns;
  context->saved_data["first_column" + which] = mask.first_column;
}

[[nodiscard]] inline DropMask kept_mask(torch::autograd::AutogradContext* context,
                                        const std::string& which = {}) {
  const auto& data = context->saved_data;
  const double share = data.at("dropout" + which).toDouble();
  if (share == 0) return {};
  return {.share = share,
          .seed = data.at("seed" + which).toTensor(),
          .place = static_cast<std::uint64_t>(data.at("place" + which).toInt()),
          .rows = data.at("rows" + which).toTensor(),
          .whole_columns = data.at("whole_columns" + which).toInt(),
          .first_column = data.at("first_column" + which).toInt()};
}

/// [samples] fp32, on the device of `like`.
[[nodiscard]] inline at::Tensor sample_factors(std::int64_t samples, const DropMask& mask,
                                               const at::Tensor& like) {
  return drop(at::ones({samples}, like.options().dtype(at::kFloat)), mask);
}

}  // namespace dstrain::ops
