#include "engine/kernels/excite/gated_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "engine/kernels/op_support.h"

namespace dstrain::ops {

at::Tensor squeezed_norm(const at::Tensor& x, const GpuStatistics& statistics,
                         ImageActivation activation) {
  at::Tensor mean = at::empty({x.size(0), x.size(3)}, x.options());
  kernels::cuda::squeeze({.x = x.const_data_ptr(),
                          .scale = statistics.scale(),
                          .shift = statistics.shift(),
                          .mean = mean.mutable_data_ptr(),
                          .samples = x.size(0),
                          .pixels = x.size(1) * x.size(2),
                          .channels = x.size(3),
                          .activation = kernel_activation(activation),
                          .dtype = kernel_dtype(x)},
                         current_stream());
  return mean;
}

GatedSums gated_sums(const at::Tensor& x, const at::Tensor& dy, const GpuStatistics& statistics,
                     ImageActivation activation, const at::Tensor& gate) {
  const std::int64_t samples = x.size(0), channels = x.size(3);
  const bool writes = gate.defined();
  GatedSums made{.grad_gate = scratch(x, {samples, channels}),
                 .sums = scratch(x, {samples, 4, channels}),
                 .y = writes ? at::empty_like(x) : at::Tensor()};
  kernels::cuda::gate_backward_sums({.x = x.const_data_ptr(),
                                     .grad_y = dy.const_data_ptr(),
                                     .mean = statistics.mean(),
                                     .scale = statistics.scale(),
                                     .shift = statistics.shift(),
                                     .grad_gate = made.grad_gate.mutable_data_ptr<float>(),
                                     .sums = made.sums.mutable_data_ptr<float>(),
                                     .samples = samples,
                                     .pixels = x.size(1) * x.size(2),
                                     .channels = channels,
                                     .activation = kernel_activation(activation),
                                     .dtype = kernel_dtype(x),
                                     .gate = writes ? gate.const_data_ptr<float>() : nullptr,
                                     .y = writes ? made.y.mutable_data_ptr() : nullptr},
                                    current_stream());
  return made;
}

at::Tensor gated_norm_sums(const GatedSums& sums, const at::Tensor& gate,
                           const at::Tensor& grad_mean, const at::Tensor& x,
                           const at::Tensor& valid) {
  at::Tensor partial = scratch(x, {1, 2, x.size(3)});
  kernels::cuda::gate_backward_combine({.sums = sums.sums.const_data_ptr<float>(),
                                        .gate = gate.const_data_ptr<float>(),
                                        .grad_mean = grad_mean.const_data_ptr<float>(),
                                        .valid = valid_pointer(valid),
                                        .partial = partial.mutable_data_ptr<float>(),
                                        .samples = x.size(0),
                                        .pixels = x.size(1) * x.size(2),
                                        .channels = x.size(3)},
                                       current_stream());
  return partial;
}

}  // namespace dstrain::ops
