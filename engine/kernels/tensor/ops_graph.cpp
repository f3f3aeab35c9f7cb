#include "engine/kernels/tensor/ops_graph.h"

#include <torch/csrc/autograd/custom_function.h>

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct InGraph : torch::autograd::Function<InGraph> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, const at::Tensor&) { return x; }
  static variable_list backward(AutogradContext*, const variable_list&) { return {{}, {}}; }
};

}  // namespace

at::Tensor in_graph_of(const at::Tensor& x, const at::Tensor& inside) {
  return InGraph::apply(x, inside);
}

}  // namespace dstrain::ops
