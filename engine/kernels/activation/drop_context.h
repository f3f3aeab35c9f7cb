#pragma once

#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>

#include "engine/kernels/activation/ops_dropout.h"
#include "engine/kernels/ops.h"

/// A mask of dropout in an autograd context, and what it multiplies samples by.
namespace dstrain::ops {

inline void keep_mask(torch::autograd::AutogradContext* context, const DropMask& mask) {
  context->saved_data["dropout"] = mask.share;
  context->saved_data["seed"] = mask.seed;
  context->saved_data["place"] = static_cast<std::int64_t>(mask.place);
  context->saved_data["rows"] = mask.rows;
  context->saved_data["whole_columns"] = mask.whole_columns;
  context->saved_data["first_column"] = mask.first_column;
}

[[nodiscard]] inline DropMask kept_mask(torch::autograd::AutogradContext* context) {
  const auto& data = context->saved_data;
  return {.share = data.at("dropout").toDouble(),
          .seed = data.at("seed").toTensor(),
          .place = static_cast<std::uint64_t>(data.at("place").toInt()),
          .rows = data.at("rows").toTensor(),
          .whole_columns = data.at("whole_columns").toInt(),
          .first_column = data.at("first_column").toInt()};
}

/// [samples] fp32, on the device of `like`.
[[nodiscard]] inline at::Tensor sample_factors(std::int64_t samples, const DropMask& mask,
                                               const at::Tensor& like) {
  return drop(at::ones({samples}, like.options().dtype(at::kFloat)), mask);
}

}  // namespace dstrain::ops
