#include "engine/kernels/pool/ops_pool.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/batch_norm/kernels.h"
#include "engine/kernels/conv/image_layout.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/pool/kernels.h"
#include "engine/kernels/pool/pooling.h"

namespace dstrain::ops {

kernels::PoolShape pool_kernel_shape(const at::Tensor& x, const PoolShape& shape) {
  return {.samples = x.size(0),
          .height = x.size(1),
          .width = x.size(2),
          .out_height = shape.output_side(x.size(1)),
          .out_width = shape.output_side(x.size(2)),
          .channels = x.size(3),
          .kernel = static_cast<int>(shape.kernel),
          .stride = static_cast<int>(shape.stride),
          .before = static_cast<int>(shape.padding)};
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Pooled pooled_cuda(const at::Tensor& x, const PoolShape& shape) {
  const kernels::PoolShape s = pool_kernel_shape(x, shape);
  const std::vector<std::int64_t> sizes{s.samples, s.out_height, s.out_width, s.channels};
  Pooled made{.y = at::empty(sizes, x.options()),
              .places = at::empty(sizes, x.options().dtype(at::kByte))};
  kernels::cuda::max_pool({.x = x.const_data_ptr(),
                           .y = made.y.mutable_data_ptr(),
                           .place = made.places.mutable_data_ptr<std::uint8_t>(),
                           .shape = s,
                           .dtype = kernel_dtype(x)},
                          current_stream());
  return made;
}

/// Where windows begin along one side of the image, [outputs] int64.
at::Tensor window_starts(std::int64_t outputs, const PoolShape& shape) {
  return at::arange(outputs, at::kLong) * shape.stride - shape.padding;
}

Pooled pooled_cpu(const at::Tensor& x, const PoolShape& shape) {
  const auto [y, indices] =
      at::max_pool2d_with_indices(channels_second(x), {shape.kernel, shape.kernel},
                                  {shape.stride, shape.stride}, {shape.padding, shape.padding});
  const at::Tensor row = indices.div(x.size(2), "floor"), column = indices - row * x.size(2);
  const at::Tensor places = (row - window_starts(y.size(2), shape).view({-1, 1})) * shape.kernel +
                            (column - window_starts(y.size(3), shape));
  return {channels_last(y), channels_last(places.to(at::kByte))};
}

/// What ATen calls the places: the index in the image without channels. Windows that pass no
/// gradient on have place 0, which may lie in the padding: theirs is brought into the image.
at::Tensor indices_of(const at::Tensor& places, const PoolShape& shape, std::int64_t height,
                      std::int64_t width) {
  const at::Tensor place = channels_second(places).to(at::kLong),
                   row = place.div(shape.kernel, "floor"), column = place - row * shape.kernel;
  return ((row + window_starts(place.size(2), shape).view({-1, 1})) * width + column +
          window_starts(place.size(3), shape))
      .clamp_(0, height * width - 1);
}

at::Tensor max_pool_gradient_cuda(const at::Tensor& dy, const at::Tensor& places,
                                  const PoolShape& shape, at::IntArrayRef sizes) {
  at::Tensor dx = at::empty(sizes, dy.options());
  kernels::cuda::max_pool_backward({.grad_y = dy.const_data_ptr(),
                                    .place = places.const_data_ptr<std::uint8_t>(),
                                    .grad_x = dx.mutable_data_ptr(),
                                    .shape = pool_kernel_shape(dx, shape),
                                    .dtype = kernel_dtype(dy)},
                                   current_stream());
  return dx;
}

at::Tensor max_pool_gradient_cpu(const at::Tensor& dy, const at::Tensor& places,
                                 const PoolShape& shape, at::IntArrayRef sizes) {
  const at::Tensor x = at::empty(sizes, dy.options());  // only its shape is read
  return channels_last(at::max_pool2d_with_indices_backward(
      channels_second(dy), channels_second(x), {shape.kernel, shape.kernel},
      {shape.stride, shape.stride}, {shape.padding, shape.padding}, {1, 1}, /*ceil_mode=*/false,
      indices_of(places, shape, sizes[1], sizes[2])));
}

struct MaxPool : torch::autograd::Function<MaxPool> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const PoolShape& shape) {
    const at::Tensor x = dense(input);
    const Pooled made = pooled(x, shape);
    context->save_for_backward({made.places});
    context->saved_data["sizes"] = x.sizes().vec();
    context->saved_data["shape"] =
        std::vector<std::int64_t>{shape.kernel, shape.stride, shape.padding};
    return made.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor places = context->get_saved_variables()[0], dy = dense(grads[0]);
    const std::vector<std::int64_t> list = context->saved_data.at("shape").toIntVector(),
                                    sizes = context->saved_data.at("sizes").toIntVector();
    const PoolShape shape = {list[0], list[1], list[2]};
    return {max_pool_gradient(dy, places, shape, sizes), {}};
  }
};

at::Tensor mean_cuda(const at::Tensor& x) {
  at::Tensor mean = at::empty({x.size(0), x.size(3)}, x.options());
  kernels::cuda::squeeze({.x = x.const_data_ptr(),
                          .scale = nullptr,
                          .shift = nullptr,
                          .mean = mean.mutable_data_ptr(),
                          .samples = x.size(0),
                          .pixels = x.size(1) * x.size(2),
                          .channels = x.size(3),
                          .activation = kernels::Activation::none,
                          .dtype = kernel_dtype(x)},
                         current_stream());
  return mean;
}

at::Tensor spread_cuda(const at::Tensor& grad, at::IntArrayRef sizes) {
  at::Tensor dx = at::empty(sizes, grad.options());
  kernels::cuda::spread_mean({.grad = grad.const_data_ptr(),
                              .grad_x = dx.mutable_data_ptr(),
                              .samples = sizes[0],
                              .pixels = sizes[1] * sizes[2],
                              .channels = sizes[3],
                              .dtype = kernel_dtype(grad)},
                             current_stream());
  return dx;
}

struct AveragePool : torch::autograd::Function<AveragePool> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->saved_data["sizes"] = x.sizes().vec();
    if (x.is_cuda()) return mean_cuda(dense(x));
    return x.mean({1, 2}, /*keepdim=*/false, at::kFloat).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const std::vector<std::int64_t> sizes = context->saved_data.at("sizes").toIntVector();
    if (grads[0].is_cuda()) return {spread_cuda(dense(grads[0]), sizes)};
    const at::Tensor share = grads[0] / static_cast<double>(sizes[1] * sizes[2]);
    return {share.view({sizes[0], 1, 1, sizes[3]}).expand(sizes).contiguous()};
  }
};

/// [side^2, H W] fp32: row i has the weights of the pixels of window i. Made where it is used, as a
/// graph cannot hold a copy from the host.
at::Tensor grid_weights(std::int64_t side, std::int64_t height, std::int64_t width,
                        const at::Tensor& like) {
  at::Tensor weights = at::zeros({side, side, height, width}, like.options().dtype(at::kFloat));
  const auto begin = [side](std::int64_t i, std::int64_t size) { return i * size / side; };
  const auto end = [side](std::int64_t i, std::int64_t size) {
    return ((i + 1) * size + side - 1) / side;
  };
  for (std::int64_t r = 0; r < side; ++r) {
    for (std::int64_t c = 0; c < side; ++c) {
      const std::int64_t rows = end(r, height) - begin(r, height),
                         columns = end(c, width) - begin(c, width);
      weights[r][c]
          .narrow(0, begin(r, height), rows)
          .narrow(1, begin(c, width), columns)
          .fill_(1.0 / static_cast<double>(rows * columns));
    }
  }
  return weights.view({side * side, height * width});
}

struct AverageGrid : torch::autograd::Function<AverageGrid> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, std::int64_t side) {
    context->saved_data["sizes"] = input.sizes().vec();
    context->saved_data["side"] = side;
    const at::Tensor x = dense(input);
    const std::int64_t height = x.size(1), width = x.size(2);
    const at::Tensor means =
        at::matmul(grid_weights(side, height, width, x),
                   x.to(at::kFloat).view({x.size(0), height * width, x.size(3)}));
    return means.to(x.scalar_type()).view({x.size(0), side, side, x.size(3)});
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const std::vector<std::int64_t> sizes = context->saved_data.at("sizes").toIntVector();
    const std::int64_t side = context->saved_data.at("side").toInt();
    const at::Tensor dy = dense(grads[0]).to(at::kFloat).view({sizes[0], side * side, sizes[3]});
    const at::Tensor dx = at::matmul(grid_weights(side, sizes[1], sizes[2], grads[0]).t(), dy);
    return {dx.to(grads[0].scalar_type()).view(sizes), {}};
  }
};

}  // namespace

Pooled pooled(const at::Tensor& x, const PoolShape& shape) {
  return x.is_cuda() ? pooled_cuda(x, shape) : pooled_cpu(x, shape);
}

at::Tensor max_pool_gradient(const at::Tensor& dy, const at::Tensor& places, const PoolShape& shape,
                             at::IntArrayRef sizes) {
  return dy.is_cuda() ? max_pool_gradient_cuda(dy, places, shape, sizes)
                      : max_pool_gradient_cpu(dy, places, shape, sizes);
}

at::Tensor max_pool(const at::Tensor& x_BHWC, const PoolShape& shape) {
  DSTRAIN_CHECK(x_BHWC.dim() == 4 && shape.kernel <= 15 && shape.output_side(x_BHWC.size(1)) > 0 &&
                    shape.output_side(x_BHWC.size(2)) > 0,
                fmt::format("max_pool: x {}, window {}", shape_of(x_BHWC), shape.kernel));
  return MaxPool::apply(x_BHWC, shape);
}

at::Tensor average_pool(const at::Tensor& x_BHWC) {
  DSTRAIN_CHECK(x_BHWC.dim() == 4, fmt::format("average_pool: x {}", shape_of(x_BHWC)));
  return AveragePool::apply(x_BHWC);
}

at::Tensor average_grid(const at::Tensor& x_BHWC, std::int64_t side) {
  DSTRAIN_CHECK(x_BHWC.dim() == 4 && side > 0,
                fmt::format("average_grid: x {}, side {}", shape_of(x_BHWC), side));
  if (x_BHWC.size(1) == side && x_BHWC.size(2) == side) return x_BHWC;
  return AverageGrid::apply(x_BHWC, side);
}

}  // namespace dstrain::ops
