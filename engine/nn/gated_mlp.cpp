#include "engine/nn/gated_mlp.h"

#include "engine/kernels/tensor/ops_tensor.h"

namespace dstrain {

GatedMlp::GatedMlp(const GatedMlpNames& names, std::int64_t width, std::int64_t mlp_width,
                   const InitialWeights& init, const AxisPart& tensor)
    : mlp_width_(mlp_width / tensor.count),
      gate_up_({{names.gate, mlp_width}, {names.up, mlp_width}}, {width}, init,
               /*has_bias=*/false, {LinearCut::By::rows, tensor}),
      down_({{names.down, width}}, {mlp_width}, init, /*has_bias=*/false,
            {LinearCut::By::columns, tensor}) {}

at::Tensor GatedMlp::forward(const at::Tensor& x_mD, const Call& call) {
  const at::Tensor x_MD = ops::all_gather_rows(x_mD, call.exchanging());
  return down_.forward_gated(x_MD, gate_up_, call);
}

std::vector<LayerCost> GatedMlp::layers(std::int64_t rows, int compute_bytes) const {
  const Bytes hidden = rows * mlp_width_ * compute_bytes;
  // Gate and up; their product only for adapters, the weight's gradient makes it again.
  return {gate_up_.cost(rows, compute_bytes),
          {.name = "SwiGLU", .saved_bytes = (down_.has_adapters() ? 3 : 2) * hidden},
          down_.cost(rows, compute_bytes, true)};
}

Workspace GatedMlp::workspace(std::int64_t rows, int compute_bytes) const {
  const Bytes hidden = rows * mlp_width_ * compute_bytes;
  // The product of gate and up until it is multiplied. Backward, its gradient, those of gate and
  // up, and the product once more.
  return {.forward = hidden, .backward = 4 * hidden};
}

void GatedMlp::add_parameters(std::vector<Parameter*>& list) {
  gate_up_.add_parameters(list);
  down_.add_parameters(list);
}

}  // namespace dstrain
