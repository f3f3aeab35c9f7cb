#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "engine/kernels/ops.h"

namespace dstrain::test {

/// Places of tokens in a batch of text and the sequences that the tests pack.
inline ops::Sequences pack(const std::vector<std::int64_t>& lengths, std::int64_t unused = 0,
                           at::Device device = at::kCPU) {
  std::vector<int> starts = {0}, positions;
  std::int64_t longest = 0;
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < length; ++i) positions.push_back(static_cast<int>(i));
    starts.push_back(static_cast<int>(positions.size()));
    longest = std::max(longest, length);
  }
  for (std::int64_t i = 0; i < unused; ++i) starts.push_back(starts.back());
  const auto tensor = [&](const std::vector<int>& values) {
    const at::Tensor all = at::empty({static_cast<std::int64_t>(values.size())}, at::kInt);
    std::copy(values.begin(), values.end(), all.mutable_data_ptr<int>());
    return all.to(device);
  };
  return {.starts = tensor(starts), .longest = longest, .positions = tensor(positions)};
}

/// x [H, T, d] turned as transformers' Qwen2 does it: x cos + rotate_half(x) sin, angles
/// position * theta^(-2i/d) twice over; scaled by wavelength as its _compute_llama3_parameters, or
/// divided as its _compute_longrope_parameters. Of `shape.rotary` first elements d is these.
inline at::Tensor plain_rotary(const at::Tensor& all, const ops::AttentionShape& shape) {
  const std::int64_t tokens = all.size(1), dim = shape.turning();
  const at::Tensor x = all.narrow(2, 0, dim), rest = all.narrow(2, dim, all.size(2) - dim);
  at::Tensor frequencies =
      at::pow(at::Scalar(shape.rope_theta),
              at::arange(0, dim, 2, x.options()) * (-1.0 / static_cast<double>(dim)));
  if (const ops::RopeScaling& scaling = shape.rope_scaling; scaling.factor > 0) {
    const at::Tensor length = 2 * std::numbers::pi / frequencies;
    const at::Tensor smooth = (scaling.positions / length - scaling.low_factor) /
                              (scaling.high_factor - scaling.low_factor);
    const at::Tensor slow = frequencies / scaling.factor;
    const at::Tensor mixed = (1 - smooth) * slow + smooth * frequencies;
    const at::Tensor fast = length < scaling.positions / scaling.high_factor;
    frequencies = at::where(length > scaling.positions / scaling.low_factor, slow,
                            at::where(fast, frequencies, mixed));
  }
  const auto& divisors = static_cast<double>(tokens) > shape.rope_scaling.positions
                             ? shape.rope_scaling.long_divisors
                             : shape.rope_scaling.short_divisors;
  if (!divisors.empty()) frequencies = frequencies / at::tensor(divisors, x.options());
  const at::Tensor half = at::arange(tokens, x.options()).unsqueeze(1) * frequencies;
  const at::Tensor angles = at::cat({half, half}, 1);
  const at::Tensor other = at::cat({-x.narrow(2, dim / 2, dim / 2), x.narrow(2, 0, dim / 2)}, 2);
  const double amplitude = shape.rope_scaling.amplitude;
  return at::cat({(x * angles.cos() + other * angles.sin()) * amplitude, rest}, 2);
}

/// One slope a head, as transformers' build_alibi_tensor writes them.
inline at::Tensor plain_slopes(std::int64_t heads) {
  std::int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  std::vector<double> slopes;
  const double base = std::pow(2.0, -std::pow(2.0, -(std::log2(static_cast<double>(power)) - 3)));
  for (std::int64_t i = 1; i <= power; ++i)
    slopes.push_back(std::pow(base, static_cast<double>(i)));
  const double extra =
      std::pow(2.0, -std::pow(2.0, -(std::log2(2 * static_cast<double>(power)) - 3)));
  for (std::int64_t i = 1; power + (i + 1) / 2 <= heads; i += 2)
    slopes.push_back(std::pow(extra, static_cast<double>(i)));
  const at::Tensor all = at::empty({heads}, at::kDouble);
  std::copy(slopes.begin(), slopes.end(), all.mutable_data_ptr<double>());
  return all;
}

/// Attention of one sequence, rows [T, qkv_width] of doubles, written out.
inline at::Tensor plain_sequence(const at::Tensor& rows, const ops::AttentionShape& shape) {
  const std::int64_t tokens = rows.size(0), heads = shape.heads, kv_heads = shape.kv_heads;
  at::Tensor q, k, v;
  if (shape.interleaved) {
    const at::Tensor all = rows.view({tokens, heads, 3, shape.head_dim}).permute({2, 1, 0, 3});
    q = all.select(0, 0), k = all.select(0, 1), v = all.select(0, 2);
  } else {
    const at::Tensor all =
        rows.view({tokens, heads + 2 * kv_heads, shape.head_dim}).transpose(0, 1);
    q = all.narrow(0, 0, heads), k = all.narrow(0, heads, kv_heads),
    v = all.narrow(0, heads + kv_heads, kv_heads);
  }
  if (shape.rope_theta > 0) {
    q = plain_rotary(q, shape);
    k = plain_rotary(k, shape);
  }
  k = k.repeat_interleave(heads / kv_heads, 0);
  v = v.repeat_interleave(heads / kv_heads, 0);
  at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * shape.score_scale();
  if (shape.softcap > 0) scores = at::tanh(scores / shape.softcap) * shape.softcap;
  if (shape.alibi) {
    const at::Tensor places = at::arange(tokens, rows.options());
    scores = scores + plain_slopes(heads).view({heads, 1, 1}) * places;
  }
  if (shape.causal) {
    scores = scores.masked_fill(at::ones({tokens, tokens}, at::kBool).triu(1),
                                -std::numeric_limits<double>::infinity());
  }
  if (shape.window > 0) {
    scores = scores.masked_fill(at::ones({tokens, tokens}, at::kBool).tril(-shape.window),
                                -std::numeric_limits<double>::infinity());
  }
  return at::matmul(at::softmax(scores, -1), v).transpose(0, 1).reshape({tokens, shape.width()});
}

/// Attention in double for every sequence of a batch.
inline at::Tensor plain_attention(const at::Tensor& qkv, const ops::AttentionShape& shape,
                                  const std::vector<std::int64_t>& lengths) {
  std::vector<at::Tensor> outs;
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    outs.push_back(plain_sequence(qkv.narrow(0, first, length), shape));
    first += length;
  }
  return at::cat(outs);
}

}  // namespace dstrain::test
