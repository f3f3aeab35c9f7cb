#include "engine/kernels/conv/ops_depthwise.h"

#include <optional>

#include "engine/kernels/conv/depthwise.h"
#include "engine/kernels/conv/ops_conv.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct DepthwiseNorm : torch::autograd::Function<DepthwiseNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const BatchNormCall* before,
                            const ConvShape& shape, Parameter* weight, const BatchNormCall& after) {
    const at::Tensor x = dense(input);
    const DepthwiseOutput out = depthwise_forward(x, before, shape, *weight, after);
    context->save_for_backward({x, out.before, out.y, out.after});
    keep_depthwise(context, before, shape, *weight, after);
    return gpu_batch_norm_apply(out.y, GpuStatistics(out.after), {.activation = after.activation});
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const bool for_input = context->needs_input_grad(0);
    const KeptDepthwise of =
        kept_depthwise(context, saved[0], {.before = saved[1], .y = saved[2], .after = saved[3]});
    const bool further = of.further(for_input);
    DepthwiseGradient with{.dy = dense(grads[0]), .slope_offset = {}};
    if (of.after.needs_sums(further)) {
      const GpuStatistics statistics(of.out.after);
      const at::Tensor sums = gpu_gradient_sums({.x = of.out.y,
                                                 .dy = with.dy,
                                                 .y = {},
                                                 .statistics = statistics,
                                                 .activation = of.after.activation,
                                                 .valid = of.after.valid});
      with.slope_offset =
          gpu_finish_gradient(sums, statistics, of.after.weight, of.after.bias, of.after.sharing());
    }
    at::Tensor dx;
    if (further) dx = depthwise_backward(of, with, for_input);
    return {dx, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor depthwise_norm(const at::Tensor& x_BHWC, const BatchNormCall* before,
                          const ConvShape& shape, Parameter& weight, const BatchNormCall& after) {
  if (!depthwise_has_kernel(x_BHWC, shape)) {
    return batch_norm(before == nullptr ? conv(x_BHWC, shape, weight)
                                        : batch_norm_conv(x_BHWC, *before, shape, weight),
                      after);
  }
  if (before != nullptr) check_batch_norm(x_BHWC, *before, {});
  check_batch_norm(x_BHWC, after, {});
  check_conv(x_BHWC, shape, weight, nullptr);
  const bool trains = (before != nullptr && before->trains()) || weight.trainable || after.trains();
  return DepthwiseNorm::apply(x_BHWC, anchor_for(x_BHWC, trains), before, shape, &weight, after);
}

}  // namespace dstrain::ops
