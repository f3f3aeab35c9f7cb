#include "engine/kernels/pool/ops_norm_pool.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/batch_norm/batch_norm_context.h"
#include "engine/kernels/batch_norm/batch_norm_gpu.h"
#include "engine/kernels/batch_norm/normed.h"
#include "engine/kernels/conv/bias_relu.h"
#include "engine/kernels/conv/conv_context.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/pool/norm_pool_kernel.h"
#include "engine/kernels/pool/pooling.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// relu(x * scale + shift), pooled; null: 1 and 0.
Pooled pooled_relu_cuda(const at::Tensor& x, const float* scale, const float* shift,
                        const PoolShape& pool) {
  const kernels::PoolShape s = pool_kernel_shape(x, pool);
  const std::vector<std::int64_t> sizes{s.samples, s.out_height, s.out_width, s.channels};
  Pooled made{.y = at::empty(sizes, x.options()),
              .places = at::empty(sizes, x.options().dtype(at::kByte))};
  kernels::cuda::norm_max_pool({.x = x.const_data_ptr(),
                                .scale = scale,
                                .shift = shift,
                                .y = made.y.mutable_data_ptr(),
                                .place = made.places.mutable_data_ptr<std::uint8_t>(),
                                .shape = s,
                                .dtype = kernel_dtype(x)},
                               current_stream());
  return made;
}

/// Pools what ReLU gave. Windows without a positive element are marked, as the kernels do.
Pooled pooled_relu_cpu(const at::Tensor& activated, const PoolShape& pool) {
  Pooled made = pooled(activated, pool);
  made.places.masked_fill_(made.y.eq(0), kernels::kNoPlace);
  return made;
}

/// The gradient before the ReLU.
at::Tensor relu_pool_gradient_cpu(const at::Tensor& dy, const at::Tensor& places,
                                  const PoolShape& pool, at::IntArrayRef sizes) {
  const at::Tensor none = places.eq(kernels::kNoPlace);
  return max_pool_gradient(dy.masked_fill(none, 0), places.masked_fill(none, 0), pool, sizes);
}

void keep_pool(AutogradContext* context, const PoolShape& pool) {
  context->saved_data["pool"] = std::vector<std::int64_t>{pool.kernel, pool.stride, pool.padding};
}

PoolShape kept_pool(AutogradContext* context) {
  const std::vector<std::int64_t> list = context->saved_data.at("pool").toIntVector();
  return {list[0], list[1], list[2]};
}

/// What backward of a norm with a pool has.
struct PooledNorm {
  at::Tensor x, statistics, places, dy;
  PoolShape pool;
};

at::Tensor norm_pool_gradient_cuda(const KeptBatchNorm& norm, const PooledNorm& of,
                                   bool for_input) {
  const kernels::PoolShape s = pool_kernel_shape(of.x, of.pool);
  const GpuStatistics statistics(of.statistics);
  const kernels::DType dtype = kernel_dtype(of.x);
  const auto* place = of.places.const_data_ptr<std::uint8_t>();
  at::Tensor slope_offset;
  if (norm.needs_sums(for_input)) {
    const at::Tensor partial = scratch(of.x, {kernels::norm_pool_partials(s), 2, s.channels});
    kernels::cuda::norm_max_pool_sums({.x = of.x.const_data_ptr(),
                                       .place = place,
                                       .grad_y = of.dy.const_data_ptr(),
                                       .mean = statistics.mean(),
                                       .valid = valid_pointer(norm.valid),
                                       .partial = partial.mutable_data_ptr<float>(),
                                       .shape = s,
                                       .dtype = dtype},
                                      current_stream());
    slope_offset = gpu_finish_gradient(partial, statistics, norm.weight, norm.bias, norm.sharing());
  }
  if (!for_input) return {};
  at::Tensor dx = at::empty(of.x.sizes(), of.x.options());
  const float* slope = slope_offset.defined() ? slope_offset.const_data_ptr<float>() : nullptr;
  kernels::cuda::norm_max_pool_backward({.x = of.x.const_data_ptr(),
                                         .mean = statistics.mean(),
                                         .scale = statistics.scale(),
                                         .slope = slope,
                                         .offset = slope == nullptr ? nullptr : slope + s.channels,
                                         .valid = valid_pointer(norm.valid),
                                         .place = place,
                                         .grad_y = of.dy.const_data_ptr(),
                                         .grad_x = dx.mutable_data_ptr(),
                                         .grad_bias = nullptr,
                                         .partial = nullptr,
                                         .shape = s,
                                         .dtype = dtype},
                                        current_stream());
  return dx;
}

/// The gradient of what ReLU reads, and that of the bias, unless that is null or frozen.
at::Tensor relu_pool_gradient_cuda(const at::Tensor& dy, const at::Tensor& places,
                                   const PoolShape& pool, at::IntArrayRef sizes, Parameter* bias) {
  at::Tensor dz = at::empty(sizes, dy.options()), partial;
  const kernels::PoolShape s = pool_kernel_shape(dz, pool);
  float* gradient = bias == nullptr ? nullptr : GradientSink(*bias, dy).vector();
  if (gradient != nullptr) partial = scratch(dy, {kernels::norm_pool_partials(s), s.channels});
  kernels::cuda::norm_max_pool_backward({.x = nullptr,
                                         .mean = nullptr,
                                         .scale = nullptr,
                                         .slope = nullptr,
                                         .offset = nullptr,
                                         .valid = nullptr,
                                         .place = places.const_data_ptr<std::uint8_t>(),
                                         .grad_y = dy.const_data_ptr(),
                                         .grad_x = dz.mutable_data_ptr(),
                                         .grad_bias = gradient,
                                         .partial = fp32_or_null(partial),
                                         .shape = s,
                                         .dtype = kernel_dtype(dy)},
                                        current_stream());
  return dz;
}

struct BatchNormMaxPool : torch::autograd::Function<BatchNormMaxPool> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const BatchNormCall& call,
                            const PoolShape& pool) {
    const at::Tensor x = dense(input);
    at::Tensor statistics;
    Pooled made;
    if (x.is_cuda()) {
      const GpuStatistics taken = gpu_statistics(x, call);
      statistics = taken.all();
      made = pooled_relu_cuda(x, taken.scale(), taken.shift(), pool);
    } else {
      const Normed out = normed(x, call);
      statistics = out.statistics;
      made = pooled_relu_cpu(out.y, pool);
    }
    context->save_for_backward({x, statistics, made.places});
    keep_call(context, call);
    keep_pool(context, pool);
    return made.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const KeptBatchNorm norm = kept_call(context);
    const bool for_input = context->needs_input_grad(0);
    const PooledNorm of{.x = saved[0],
                        .statistics = saved[1],
                        .places = saved[2],
                        .dy = dense(grads[0]),
                        .pool = kept_pool(context)};
    if (of.x.is_cuda()) return {norm_pool_gradient_cuda(norm, of, for_input), {}, {}, {}};
    const NormGradients made =
        norm_gradients(norm,
                       {.x = of.x,
                        .statistics = of.statistics,
                        .y = {},
                        .dy = relu_pool_gradient_cpu(of.dy, of.places, of.pool, of.x.sizes())},
                       {.input = for_input, .residual = false});
    return {made.dx, {}, {}, {}};
  }
};

struct ConvMaxPool : torch::autograd::Function<ConvMaxPool> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>&, Parameter* weight, Parameter* bias,
                            const ConvShape& shape, const PoolShape& pool) {
    const at::Tensor z = convolve(x, value_of(*weight, x), shape);
    Pooled made;
    if (z.is_cuda()) {
      const at::Tensor shift = bias == nullptr ? at::Tensor() : value_of(*bias, x).to(at::kFloat);
      made = pooled_relu_cuda(z, nullptr, shift.defined() ? shift.const_data_ptr<float>() : nullptr,
                              pool);
    } else {
      add_bias_relu(z, bias == nullptr ? at::Tensor() : value_of(*bias, x), /*relu=*/true);
      made = pooled_relu_cpu(z, pool);
    }
    context->save_for_backward({weight->trainable ? x : at::Tensor(), made.places});
    context->saved_data["sizes"] = x.sizes().vec();
    context->saved_data["convolved"] = z.sizes().vec();
    keep(context, "weight", weight);
    keep(context, "bias", bias);
    keep_shape(context, shape);
    keep_pool(context, pool);
    return made.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    Parameter &weight = kept(context, "weight"), *bias = kept_or_null(context, "bias");
    const ConvShape shape = kept_shape(context);
    const PoolShape pool = kept_pool(context);
    const std::vector<std::int64_t> sizes = context->saved_data.at("convolved").toIntVector();
    const at::Tensor dy = dense(grads[0]);
    const at::Tensor dz =
        dy.is_cuda()
            ? relu_pool_gradient_cuda(dy, saved[1], pool, sizes, bias)
            : bias_relu_gradient(relu_pool_gradient_cpu(dy, saved[1], pool, sizes), {}, bias);
    if (weight.trainable) add_conv_weight_gradient(saved[0], dz, shape, weight);
    at::Tensor dx;
    if (context->needs_input_grad(0))
      dx = convolve_input_gradient(dz, value_of(weight, dz), shape,
                                   context->saved_data.at("sizes").toIntVector());
    return {dx, {}, {}, {}, {}, {}};
  }
};

void check_pool(const at::Tensor& x, const PoolShape& pool) {
  DSTRAIN_CHECK(x.dim() == 4 && norm_pool_fits(pool),
                fmt::format("max pooling behind ReLU: x {}, windows of {}, stride {}, padding {}",
                            shape_of(x), pool.kernel, pool.stride, pool.padding));
}

}  // namespace

bool norm_pool_fits(const PoolShape& shape) {
  return kernels::norm_pool_fits(shape.kernel, shape.stride, shape.padding);
}

at::Tensor batch_norm_max_pool(const at::Tensor& x_BHWC, const BatchNormCall& call,
                               const PoolShape& pool) {
  check_batch_norm(x_BHWC, call, {});
  check_pool(x_BHWC, pool);
  DSTRAIN_CHECK(call.activation == ImageActivation::relu && call.drop.share == 0,
                "max pooling behind a norm: ReLU alone");
  return BatchNormMaxPool::apply(
      x_BHWC, x_BHWC.requires_grad() ? std::nullopt : anchor_for(x_BHWC, call.trains()), call,
      pool);
}

at::Tensor conv_max_pool(const at::Tensor& x_BHWC, const ConvShape& shape, Parameter& weight,
                         Parameter* bias, const PoolShape& pool) {
  check_conv(x_BHWC, shape, weight, bias);
  check_pool(x_BHWC, pool);
  const bool any_trainable = weight.trainable || (bias != nullptr && bias->trainable);
  return ConvMaxPool::apply(x_BHWC, anchor_for(x_BHWC, any_trainable), &weight, bias, shape, pool);
}

}  // namespace dstrain::ops
