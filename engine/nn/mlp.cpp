#include "engine/nn/mlp.h"

#include "engine/kernels/tensor/ops_tensor.h"

namespace dstrain {

Mlp::Mlp(const MlpNames& names, std::int64_t width, std::int64_t mlp_width, ops::Gelu kind,
         const InitialWeights& init, const AxisPart& tensor)
    : width_(width),
      mlp_width_(mlp_width / tensor.count),
      kind_(kind),
      up_({{names.up, mlp_width}}, {width}, init, /*has_bias=*/true, {LinearCut::By::rows, tensor}),
      down_({{names.down, width}}, {mlp_width}, init, /*has_bias=*/true,
            {LinearCut::By::columns, tensor}) {}

at::Tensor Mlp::forward(const at::Tensor& x_mD, const Call& call) {
  const at::Tensor x_MD = ops::all_gather_rows(x_mD, call.tensor());
  return down_.forward(up_.forward_gelu(x_MD, kind_, call), call);
}

std::vector<LayerCost> Mlp::layers(std::int64_t rows, int compute_bytes) const {
  return {up_.cost(rows, compute_bytes),
          {.name = "GELU", .saved_bytes = rows * mlp_width_ * compute_bytes},  // its input
          down_.cost(rows, compute_bytes)};
}

Workspace Mlp::workspace(std::int64_t rows, int compute_bytes) const {
  const Bytes stream = rows * width_ * compute_bytes;
  const Bytes hidden = rows * mlp_width_ * compute_bytes;
  const bool adapters = up_.has_adapters() || down_.has_adapters();
  // In the GELU's linear: gradients of the output, of GELU's output and input and of the norm's
  // output; GELU's output has gone, unless adapters keep it.
  return {.backward = 2 * stream + 3 * hidden - total(layers(rows, compute_bytes)).saved_bytes +
                      (adapters ? hidden : 0)};
}

void Mlp::add_parameters(std::vector<Parameter*>& list) {
  up_.add_parameters(list);
  down_.add_parameters(list);
}

}  // namespace dstrain
