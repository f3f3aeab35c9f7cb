#include "engine/kernels/pool/ops_pool.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/conv/image_layout.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct MaxPool : torch::autograd::Function<MaxPool> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const PoolShape& shape) {
    const at::Tensor x = dense(input);
    context->save_for_backward({x});
    context->saved_data["shape"] =
        std::vector<std::int64_t>{shape.kernel, shape.stride, shape.padding};
    return channels_last(std::get<0>(pooled(x, shape)));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor x = context->get_saved_variables()[0];
    const std::vector<std::int64_t> list = context->saved_data.at("shape").toIntVector();
    const PoolShape shape = {list[0], list[1], list[2]};
    const at::Tensor indices = std::get<1>(pooled(x, shape));
    return {channels_last(at::max_pool2d_with_indices_backward(
                channels_second(dense(grads[0])), channels_second(x), {shape.kernel, shape.kernel},
                {shape.stride, shape.stride}, {shape.padding, shape.padding}, {1, 1},
                /*ceil_mode=*/false, indices)),
            {}};
  }

 private:
  static std::tuple<at::Tensor, at::Tensor> pooled(const at::Tensor& x, const PoolShape& shape) {
    return at::max_pool2d_with_indices(channels_second(x), {shape.kernel, shape.kernel},
                                       {shape.stride, shape.stride},
                                       {shape.padding, shape.padding});
  }
};

struct AveragePool : torch::autograd::Function<AveragePool> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->saved_data["sizes"] = x.sizes().vec();
    return x.mean({1, 2}, /*keepdim=*/false, at::kFloat).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const std::vector<std::int64_t> sizes = context->saved_data.at("sizes").toIntVector();
    const at::Tensor share = grads[0] / static_cast<double>(sizes[1] * sizes[2]);
    return {share.view({sizes[0], 1, 1, sizes[3]}).expand(sizes).contiguous()};
  }
};

/// [side^2, H W] fp32: row i has the weights of the pixels of window i.
at::Tensor grid_weights(std::int64_t side, std::int64_t height, std::int64_t width,
                        const at::Tensor& like) {
  at::Tensor weights = at::zeros({side, side, height, width}, at::kFloat);
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
  return weights.view({side * side, height * width}).to(like.device());
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

at::Tensor max_pool(const at::Tensor& x_BHWC, const PoolShape& shape) {
  DSTRAIN_CHECK(x_BHWC.dim() == 4 && shape.output_side(x_BHWC.size(1)) > 0 &&
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
