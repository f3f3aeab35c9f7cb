#include "engine/kernels/attention/attention_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <tuple>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

kernels::HeadLayout layout_of(const AttentionShape& shape) {
  return {shape.heads, shape.kv_heads, shape.head_dim, shape.interleaved};
}

const std::int32_t* positions_of(const Sequences& sequences) {
  return sequences.starts.defined() ? sequences.positions.const_data_ptr<std::int32_t>() : nullptr;
}

at::Tensor table_for(const at::Tensor& qkv, const AttentionShape& shape,
                     const Sequences& sequences) {
  const std::int64_t length =
      sequences.starts.defined() ? sequences.longest : qkv.size(0) / shape.batch;
  return rotary_table(qkv.device(), shape, length);
}

/// Our kernels turn whole heads.
bool by_kernel(const at::Tensor& qkv, const AttentionShape& shape) {
  return qkv.is_cuda() && shape.turning() == shape.head_dim;
}

/// Rotary positions by ATen, forward or (sign = -1) back.
void rotate_by_aten(const at::Tensor& qkv, const AttentionShape& shape, const Sequences& sequences,
                    double sign) {
  const Heads heads = split_heads(qkv, shape, sequences);
  const at::Tensor table = table_for(qkv, shape, sequences);
  const at::Tensor angles = sequences.starts.defined() ? table.index_select(0, sequences.positions)
                                                       : table.narrow(0, 0, heads[0].size(2));
  const at::Tensor cosine = angles.select(2, 0), sine = angles.select(2, 1) * sign;
  const std::int64_t half = shape.turning() / 2;
  for (const at::Tensor& head : {heads[0], heads[1]}) {
    const at::Tensor low = head.narrow(3, 0, half), high = head.narrow(3, half, half);
    const at::Tensor a = low.to(at::kFloat, false, true), b = high.to(at::kFloat, false, true);
    low.copy_(a * cosine - b * sine);
    high.copy_(b * cosine + a * sine);
  }
}

}  // namespace

at::Tensor rotary_table(at::Device device, const AttentionShape& shape, std::int64_t length) {
  using Key = std::tuple<int, int, double, RopeScaling, bool, std::int64_t, std::int64_t>;
  static std::mutex mutex;
  static std::map<Key, at::Tensor> tables;
  const bool is_long = static_cast<double>(length) > shape.rope_scaling.positions;
  length = static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(length, 1024))));
  const std::lock_guard lock(mutex);
  at::Tensor& table = tables[{static_cast<int>(device.type()), device.index(), shape.rope_theta,
                              shape.rope_scaling, is_long, shape.turning(), length}];
  if (table.defined()) return table;
  const std::int64_t half = shape.turning() / 2;
  const double amplitude = shape.rope_scaling.amplitude;
  const at::Tensor host = at::empty({length, half, 2}, at::kFloat);
  auto* out = host.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency = rotary_frequency(shape, i, is_long);
    for (std::int64_t position = 0; position < length; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      out[(position * half + i) * 2] = static_cast<float>(amplitude * std::cos(angle));
      out[(position * half + i) * 2 + 1] = static_cast<float>(amplitude * std::sin(angle));
    }
  }
  table = host.to(device);
  return table;
}

double rotary_frequency(const AttentionShape& shape, std::int64_t pair, bool is_long) {
  const double frequency = std::pow(
      shape.rope_theta, -2.0 * static_cast<double>(pair) / static_cast<double>(shape.turning()));
  const RopeScaling& scaling = shape.rope_scaling;
  if (const auto& divisors = is_long ? scaling.long_divisors : scaling.short_divisors;
      !divisors.empty())
    return frequency / divisors.at(static_cast<std::size_t>(pair));
  if (scaling.factor == 0) return frequency;
  const double turns = scaling.positions * frequency / (2 * std::numbers::pi);
  const double kept = std::clamp(
      (turns - scaling.low_factor) / (scaling.high_factor - scaling.low_factor), 0.0, 1.0);
  return kept * frequency + (1 - kept) * frequency / scaling.factor;
}

StretchedWidths stretched_widths(std::int64_t head_dim) {
  // cuDNN takes heads of two widths, and is faster for it; where another library stands in, values
  // are stretched, too.
  constexpr bool kStretchValues = false;
  const std::int64_t wide = (head_dim + 4 + 15) / 16 * 16;
  return {.query_key = wide, .value = kStretchValues ? wide : head_dim};
}

Heads split_heads(const at::Tensor& qkv, const AttentionShape& shape, const Sequences& sequences) {
  const std::int64_t batch = sequences.starts.defined() ? 1 : shape.batch;
  const std::int64_t tokens = qkv.size(0) / batch;
  if (shape.interleaved) {
    const at::Tensor all = qkv.view({batch, tokens, shape.heads, 3, shape.head_dim});
    Heads heads;
    for (std::int64_t part = 0; part < 3; ++part) {
      heads[static_cast<std::size_t>(part)] = all.select(3, part).transpose(1, 2);
    }
    return heads;
  }
  const at::Tensor all =
      qkv.view({batch, tokens, shape.heads + 2 * shape.kv_heads, shape.head_dim}).transpose(1, 2);
  return {all.narrow(1, 0, shape.heads), all.narrow(1, shape.heads, shape.kv_heads),
          all.narrow(1, shape.heads + shape.kv_heads, shape.kv_heads)};
}

Heads stretch_heads(const at::Tensor& qkv, const AttentionShape& shape, const Sequences& sequences,
                    StretchedWidths widths) {
  const Heads heads = split_heads(qkv, shape, sequences);
  const bool values_too = widths.value != shape.head_dim;
  const std::int64_t rows = qkv.size(0), batch = heads[0].size(0), wide = widths.query_key;
  DSTRAIN_CHECK(wide >= shape.head_dim + 4 && (!values_too || widths.value == wide),
                fmt::format("attention: {} and {} elements for heads of {}", wide, widths.value,
                            shape.head_dim));
  const at::Tensor query = at::empty({rows, shape.heads, wide}, qkv.options()),
                   key = at::empty({rows, shape.kv_heads, wide}, qkv.options());
  const at::Tensor value = values_too ? at::empty_like(key) : at::Tensor();
  const kernels::StretchHeads args{.qkv = qkv.const_data_ptr(),
                                   .positions = positions_of(sequences),
                                   .query = query.mutable_data_ptr(),
                                   .key = key.mutable_data_ptr(),
                                   .value = values_too ? value.mutable_data_ptr() : nullptr,
                                   .rows = rows,
                                   .tokens = rows / batch,
                                   .stretched = wide,
                                   .layout = layout_of(shape),
                                   .inverse_scale = static_cast<float>(1 / shape.score_scale()),
                                   .dtype = kernel_dtype(qkv),
                                   .first_head = shape.first_head,
                                   .model_heads = shape.slopes_of()};
  if (qkv.is_cuda()) {
    kernels::cuda::stretch_heads(args, current_stream());
  } else {
    kernels::reference::stretch_heads(args);
  }
  const auto by_head = [&](const at::Tensor& all) {
    return all.view({batch, rows / batch, all.size(1), wide}).transpose(1, 2);
  };
  return {by_head(query), by_head(key), values_too ? by_head(value) : heads[2]};
}

namespace {

void rotate(const at::Tensor& qkv, const AttentionShape& shape, const Sequences& sequences,
            bool back) {
  if (!by_kernel(qkv, shape)) return rotate_by_aten(qkv, shape, sequences, back ? -1 : 1);
  const at::Tensor table = table_for(qkv, shape, sequences);
  kernels::cuda::rotate_heads({.qkv = qkv.mutable_data_ptr(),
                               .table = table.const_data_ptr<float>(),
                               .positions = positions_of(sequences),
                               .rows = qkv.size(0),
                               .tokens = qkv.size(0) / shape.batch,
                               .layout = layout_of(shape),
                               .dtype = kernel_dtype(qkv),
                               .back = back},
                              current_stream());
}

}  // namespace

void rotate_heads(const at::Tensor& qkv, const AttentionShape& shape, const Sequences& sequences) {
  rotate(qkv, shape, sequences, /*back=*/false);
}

void pack_heads(const Heads& grads, const at::Tensor& packed, const AttentionShape& shape,
                const Sequences& sequences) {
  const bool turned = shape.rope_theta > 0;
  const Heads parts = split_heads(packed, shape, sequences);
  const bool in_place = grads[0].const_data_ptr() == parts[0].const_data_ptr();
  if (in_place || !packed.is_cuda() || (turned && !by_kernel(packed, shape))) {
    for (std::size_t part = 0; part < parts.size() && !in_place; ++part) {
      parts[part].copy_(grads[part].narrow(3, 0, shape.head_dim));
    }
    if (turned) rotate(packed, shape, sequences, /*back=*/true);
    return;
  }
  at::Tensor table;
  if (turned) table = table_for(packed, shape, sequences);
  kernels::PackHeads args{.source = {},
                          .stride = {},
                          .table = table.defined() ? table.const_data_ptr<float>() : nullptr,
                          .positions = positions_of(sequences),
                          .out = packed.mutable_data_ptr(),
                          .batch = grads[0].size(0),
                          .tokens = grads[0].size(2),
                          .layout = layout_of(shape),
                          .dtype = kernel_dtype(packed)};
  for (std::size_t part = 0; part < grads.size(); ++part) {
    DSTRAIN_CHECK(grads[part].stride(3) == 1, "attention's gradient is not dense in a head");
    args.source[part] = grads[part].const_data_ptr();
    for (std::size_t dim = 0; dim < 3; ++dim) {
      args.stride[part][dim] = grads[part].stride(static_cast<std::int64_t>(dim));
    }
  }
  kernels::cuda::pack_heads(args, current_stream());
}

at::Tensor resize_rows(const at::Tensor& rows, std::int64_t to) {
  const at::Tensor source = dense(rows);
  std::vector<std::int64_t> sizes = source.sizes().vec();
  const std::int64_t from = sizes.back();
  sizes.back() = to;
  at::Tensor out = at::empty(sizes, source.options());
  const kernels::ResizeRows args{.source = source.const_data_ptr(),
                                 .out = out.mutable_data_ptr(),
                                 .rows = source.numel() / from,
                                 .from = from,
                                 .to = to,
                                 .dtype = kernel_dtype(source)};
  if (source.is_cuda()) {
    kernels::cuda::resize_rows(args, current_stream());
  } else {
    kernels::reference::resize_rows(args);
  }
  return out;
}

at::Tensor linear_biases(const at::Tensor& queries, const at::Tensor& keys, const Slopes& slopes,
                         std::int64_t row_stride) {
  const std::int64_t heads = slopes.heads;
  const std::int64_t length = keys.size(0);
  const at::Tensor all = at::empty({1, heads, queries.size(0), std::max(row_stride, length)},
                                   keys.options().dtype(at::kFloat));
  at::Tensor biases = all.narrow(3, 0, length);
  const at::Tensor distances =
      keys.to(at::kFloat).unsqueeze(0) - queries.to(at::kFloat).unsqueeze(1);
  for (std::int64_t head = 0; head < heads; ++head) {
    biases.select(1, head).copy_(
        distances * kernels::alibi_slope(slopes.first_head + head, slopes.model_heads));
  }
  return biases;
}

}  // namespace dstrain::ops
