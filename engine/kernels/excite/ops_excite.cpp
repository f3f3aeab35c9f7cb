#include "engine/kernels/excite/ops_excite.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/batch_norm/normed.h"
#include "engine/kernels/conv/conv_context.h"
#include "engine/kernels/conv/depthwise.h"
#include "engine/kernels/conv/ops_conv.h"
#include "engine/kernels/excite/gated_norm.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void keep_excite(AutogradContext* context, const ExciteCall& call) {
  keep(context, "reduce", &call.reduce);
  keep(context, "reduce_bias", &call.reduce_bias);
  keep(context, "expand", &call.expand);
  keep(context, "expand_bias", &call.expand_bias);
  context->saved_data["hidden_activation"] = static_cast<std::int64_t>(call.activation);
  context->saved_data["gate"] = static_cast<std::int64_t>(call.gate);
}

ExciteCall kept_excite(AutogradContext* context) {
  const auto& data = context->saved_data;
  return {.reduce = kept(context, "reduce"),
          .reduce_bias = kept(context, "reduce_bias"),
          .expand = kept(context, "expand"),
          .expand_bias = kept(context, "expand_bias"),
          .activation = static_cast<ImageActivation>(data.at("hidden_activation").toInt()),
          .gate = static_cast<Gate>(data.at("gate").toInt())};
}

/// The product behind the gates.
void keep_project(AutogradContext* context, const ExcitedDepthwise& of) {
  keep(context, "project", &of.project_weight);
  keep_shape(context, of.project);
}

/// All of it on a GPU.
struct ExcitedDepthwiseGpu : torch::autograd::Function<ExcitedDepthwiseGpu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const ExcitedDepthwise& of) {
    const at::Tensor x = dense(input);
    const DepthwiseOutput out =
        depthwise_forward(x, of.before, of.depthwise, of.depthwise_weight, of.after);
    const GpuStatistics statistics(out.after);
    const at::Tensor mean = squeezed_norm(out.y, statistics, of.after.activation);
    const Gates gates = gates_of(mean, of.excite);
    context->save_for_backward({x, out.before, out.y, out.after, mean, gates.hidden, gates.gate});
    keep_depthwise(context, of.before, of.depthwise, of.depthwise_weight, of.after);
    keep_excite(context, of.excite);
    keep_project(context, of);
    const at::Tensor scaled = gpu_batch_norm_apply(
        out.y, statistics, {.activation = of.after.activation, .gate = gates.gate});
    return convolve(scaled, value_of(of.project_weight, x), of.project);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const bool for_input = context->needs_input_grad(0);
    const at::Tensor dy = dense(grads[0]), &mean = saved[4];
    const Gates gates{.hidden = saved[5], .gate = saved[6]};
    const KeptDepthwise of =
        kept_depthwise(context, saved[0], {.before = saved[1], .y = saved[2], .after = saved[3]});
    const ExciteCall excite = kept_excite(context);
    const GpuStatistics statistics(of.out.after);
    const ConvShape shape = kept_shape(context);
    Parameter& project = kept(context, "project");
    const bool further = of.further(for_input), sums = of.after.needs_sums(further);
    if (!further && !sums && !excite.trains()) {
      if (project.trainable) {
        const at::Tensor scaled = gpu_batch_norm_apply(
            of.out.y, statistics, {.activation = of.after.activation, .gate = gates.gate});
        add_conv_weight_gradient(scaled, dy, shape, project);
      }
      return {{}, {}, {}};
    }
    const at::Tensor grad =
        convolve_input_gradient(dy, value_of(project, dy), shape, of.out.y.sizes());
    // What the product behind has read comes with the sums' pass, which has all it is made of.
    GatedSums gated = gated_sums(of.out.y, grad, statistics, of.after.activation,
                                 project.trainable ? gates.gate : at::Tensor());
    if (project.trainable) {
      add_conv_weight_gradient(gated.y, dy, shape, project);
      gated.y.reset();
    }
    const at::Tensor grad_mean = gates_gradient(gated.grad_gate, mean, gates, excite);
    DepthwiseGradient with{.dy = grad, .slope_offset = {}, .gate = gates.gate, .mean = grad_mean};
    if (sums) {
      with.slope_offset = gpu_finish_gradient(
          gated_norm_sums(gated, gates.gate, grad_mean, of.out.y, of.after.valid), statistics,
          of.after.weight, of.after.bias, of.after.sharing());
    }
    at::Tensor dx;
    if (further) dx = depthwise_backward(of, with, for_input);
    return {dx, {}, {}};
  }
};

/// x * gate of the sample and channel, in fp32, rounded once.
at::Tensor times_gate(const at::Tensor& x, const at::Tensor& gate) {
  at::Tensor y = at::empty_like(x);
  return at::mul_out(y, x, gate.view({x.size(0), 1, 1, x.size(3)}));
}

/// On any device the part behind the depthwise convolution, whose output is x here.
struct ExcitedNorm : torch::autograd::Function<ExcitedNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const ExcitedDepthwise& of) {
    const at::Tensor x = dense(input);
    const Normed out = normed(x, of.after);
    const at::Tensor mean = out.y.mean({1, 2}, /*keepdim=*/false, at::kFloat).to(x.scalar_type());
    const Gates gates = gates_of(mean, of.excite);
    context->save_for_backward({x, out.statistics, mean, gates.hidden, gates.gate});
    keep_call(context, of.after);
    keep_excite(context, of.excite);
    keep_project(context, of);
    return convolve(times_gate(out.y, gates.gate), value_of(of.project_weight, x), of.project);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &mean = saved[2], dy = dense(grads[0]);
    const Gates gates{.hidden = saved[3], .gate = saved[4]};
    const KeptBatchNorm norm = kept_call(context);
    const ConvShape shape = kept_shape(context);
    Parameter& project = kept(context, "project");
    const at::Tensor h = normed_again(norm, x, saved[1]);
    if (project.trainable) add_conv_weight_gradient(times_gate(h, gates.gate), dy, shape, project);
    const at::Tensor grad =
        convolve_input_gradient(dy, value_of(project, dy), shape, x.sizes()).to(at::kFloat);
    const at::Tensor grad_gate = grad.mul(h).sum({1, 2});
    const at::Tensor grad_mean = gates_gradient(grad_gate, mean, gates, kept_excite(context));
    const auto by_sample = [&](const at::Tensor& t) {
      return t.view({x.size(0), 1, 1, x.size(3)});
    };
    const double pixels = static_cast<double>(x.size(1) * x.size(2));
    const at::Tensor dh = grad.mul(by_sample(gates.gate)).add_(by_sample(grad_mean / pixels));
    const NormGradients made = norm_gradients(
        norm, {.x = x, .statistics = saved[1], .y = {}, .dy = dh.to(x.scalar_type())},
        {.input = context->needs_input_grad(0), .residual = false});
    return {made.dx, {}, {}};
  }
};

}  // namespace

at::Tensor excited_depthwise(const at::Tensor& x_BHWC, const ExcitedDepthwise& of) {
  check_conv(x_BHWC, of.depthwise, of.depthwise_weight, nullptr);
  check_excite(x_BHWC, of.depthwise.out, of.excite);
  const bool behind = of.after.trains() || of.excite.trains() || of.project_weight.trainable;
  if (depthwise_has_kernel(x_BHWC, of.depthwise)) {
    if (of.before != nullptr) check_batch_norm(x_BHWC, *of.before, {});
    check_batch_norm(x_BHWC, of.after, {});
    const bool trains =
        behind || of.depthwise_weight.trainable || (of.before != nullptr && of.before->trains());
    return ExcitedDepthwiseGpu::apply(x_BHWC, anchor_for(x_BHWC, trains), of);
  }
  const at::Tensor d = of.before == nullptr
                           ? conv(x_BHWC, of.depthwise, of.depthwise_weight)
                           : batch_norm_conv(x_BHWC, *of.before, of.depthwise, of.depthwise_weight);
  check_batch_norm(d, of.after, {});
  check_conv(d, of.project, of.project_weight, nullptr);
  return ExcitedNorm::apply(d, anchor_for(d, behind), of);
}

}  // namespace dstrain::ops
