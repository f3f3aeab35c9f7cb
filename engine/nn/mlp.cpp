#include "engine/nn/mlp.h"

#include <algorithm>
#include <utility>

#include "engine/nn/gathered.h"
#include "engine/nn/layer_cost.h"
#include "engine/nn/tensor_exchanges.h"

namespace dstrain {

Mlp::Mlp(const MlpNames& names, std::int64_t width, std::int64_t mlp_width, ops::Gelu kind,
         const InitialWeights& init, const AxisPart& tensor)
    : width_(width),
      mlp_width_(mlp_width / tensor.count),
      tensor_(tensor),
      kind_(kind),
      up_({{names.up, mlp_width}}, {width}, init, /*has_bias=*/true, {LinearCut::By::rows, tensor}),
      down_({{names.down, width}}, {mlp_width}, init, /*has_bias=*/true,
            {LinearCut::By::columns, tensor}) {}

at::Tensor Mlp::forward(const ops::Measured& x_mD, const Call& call) {
  if (has_adapters())
    return down_.forward(up_.forward_gelu(gathered(x_mD, call).rows, kind_, call), call);
  const at::Tensor z_MF = ops::linear_of_gathered(x_mD, up_.weight(), nullptr, call.tensor());
  return down_.forward_of_gelu(z_MF, *up_.bias(), kind_, call);
}

Features Mlp::run(LayerPass& pass, const Features& x, const Workspace& beside) {
  if (pass.costs == nullptr) {
    const at::Tensor& rows = x.tensor;
    if (rows.dim() == 2) return {.tensor = forward(x.measured(), pass.call)};
    return {.tensor = forward(rows.view({-1, width_}), pass.call).view(rows.sizes())};
  }
  const std::int64_t rows = x.rows() * tensor_.count;
  const int compute_bytes = pass.costs->compute_bytes();
  return add_branch(*pass.costs, x, layers(rows, compute_bytes), tensor_,
                    workspace(rows, compute_bytes) + beside);
}

bool Mlp::has_adapters() const { return up_.has_adapters() || down_.has_adapters(); }

std::vector<LayerCost> Mlp::layers(std::int64_t rows, int compute_bytes) const {
  const Bytes hidden = rows * mlp_width_ * compute_bytes;
  LayerCost down = down_.cost(rows, compute_bytes, !has_adapters());
  const bool keepable = !has_adapters() && down_.weight().trainable && down.fp8_flops == 0;
  return {up_.cost(rows, compute_bytes),
          {.name = "GELU",
           .saved_bytes = hidden,  // its input
           .made_again = has_adapters() ? 0 : hidden,
           .hidden_bytes = keepable ? hidden : 0},
          // GELU's output only for adapters; the weight's gradient makes it again.
          std::move(down)};
}

Workspace Mlp::workspace(std::int64_t rows, int compute_bytes) const {
  const Bytes stream = rows * width_ * compute_bytes;
  const Bytes hidden = rows * mlp_width_ * compute_bytes;
  // GELU's output until it is multiplied. Backward, its gradient, that of its input, and the output
  // once more.
  const Bytes decoded =
      std::max(up_.decoded_bytes(compute_bytes), down_.decoded_bytes(compute_bytes));
  if (!has_adapters()) return {.forward = hidden + decoded, .backward = 3 * hidden + decoded};
  // In the GELU's linear: gradients of the output, of GELU's output and input and of the norm's
  // output; adapters keep GELU's output.
  return {.forward = decoded,
          .backward =
              2 * stream + 4 * hidden + decoded - total(layers(rows, compute_bytes)).saved_bytes};
}

void Mlp::add_parameters(std::vector<Parameter*>& list) {
  up_.add_parameters(list);
  down_.add_parameters(list);
}

}  // namespace dstrain
