#include "engine/kernels/activation/ops_gated_linear.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/activation/gate_context.h"
#include "engine/kernels/activation/swiglu.h"
#include "engine/kernels/linear/linear_map.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/tensor/ranked_linear.h"
#include "engine/kernels/tensor/rows_beside.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What backward needs of the activation.
struct Activated {
  at::Tensor gate_up;       ///< its input [M, 2F]
  at::Tensor gains;         ///< of its gradient; undefined in the compute dtype or on the CPU
  at::Tensor hidden;        ///< its output; undefined: to be made again
  at::Tensor scale;         ///< of its output's codes; undefined in the compute dtype
  at::Tensor weight_scale;  ///< of the weight behind it, likewise
  GateActivation gate = GateActivation::silu;
};

/// Adds to the gradient of `down` that of y, and passes it on to gate and up. In FP8 only codes of
/// it are made.
LinearGradient through_activation(const at::Tensor& dy, const Activated& kept, Parameter& gate_up,
                                  Parameter& down, bool for_input, Communicator* ranks) {
  const RankedGradient of_output =
      gradient_of_sum(dy, down, nullptr, /*for_input=*/true, kept.weight_scale, ranks);
  const LinearGradient& from_output = of_output.output;
  const at::Tensor& dh = of_output.input;
  const bool in_codes = kept.scale.defined() && runs_in_fp8(gate_up, kept.gate_up) &&
                        (for_input || gate_up.trainable);
  if (!in_codes) {
    const bool again = down.trainable && !kept.hidden.defined();
    const SwigluGradients plain = swiglu_gradients(kept.gate_up, kept.gate, dh, again);
    at::Tensor h = again ? plain.h : kept.hidden;
    if (h.defined() && kept.scale.defined())
      h = quantize(h, kernels::Fp8Format::e4m3, Sides::columns, {.scale = kept.scale}).columns;
    if (h.defined()) from_output.add_to_parameters(h, kept.scale);
    return {plain.gate_up, gate_up, nullptr, for_input};
  }
  const Sides sides = !for_input ? Sides::columns : gate_up.trainable ? Sides::both : Sides::rows;
  SwigluCodes codes = swiglu_codes(kept.gate_up, kept.gate, kept.gains, dh, sides,
                                   down.trainable ? kept.scale : at::Tensor());
  if (codes.h.defined()) from_output.add_to_parameters(codes.h, kept.scale);
  return {codes.gate_up, dh, gate_up};
}

struct GatedLinear : torch::autograd::Function<GatedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const Known& known,
                            Parameter* gate_up, Parameter* down, Communicator* ranks, Keep keeping,
                            GateActivation gate) {
    const LinearOutput both = apply_linear({dense(input), known.maxima}, *gate_up, nullptr,
                                           Keep::input, {.gathered = ranks});
    const at::Tensor maxima = maxima_for(*down, both.y), gains = maxima_for(*down, both.y);
    const LinearOutput out =
        apply_linear({swiglu_of(both.y, gate, maxima, gains), maxima}, *down, nullptr,
                     keep_hidden(keeping, *down, both.y), {.summed = ranks});
    context->save_for_backward({both.kept, both.scale, both.y, out.scale, both.weight_scale,
                                out.weight_scale, out.kept, gains});
    keep_gate(context, gate);
    keep(context, "gate_up", gate_up);
    keep(context, "down", down);
    keep_ranks(context, ranks);
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const bool for_input = context->needs_input_grad(0);
    auto* const ranks = kept_ranks_or_null(context);
    const LinearGradient dy =
        through_activation(grads[0],
                           {.gate_up = saved[2],
                            .gains = saved[7],
                            .hidden = saved[6],
                            .scale = saved[3],
                            .weight_scale = saved[5],
                            .gate = kept_gate(context)},
                           kept(context, "gate_up"), kept(context, "down"), for_input, ranks);
    return {add_and_pass_on(dy, saved[0], saved[1], saved[4], for_input, ranks),
            {},
            {},
            {},
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor gated_linear(const Measured& x_MD, Parameter& gate_up, Parameter& down,
                        Communicator* ranks, Keep keep, GateActivation gate) {
  const at::Tensor& x = x_MD.rows;
  check_linear(x, gate_up, nullptr);
  DSTRAIN_CHECK(gate_up.shape.front() == 2 * columns_of(down),
                fmt::format("gated_linear: gate and up {}, down {}", shape_of(gate_up.value),
                            shape_of(down.value)));
  return GatedLinear::apply(x, anchor_for(x, gate_up.trainable || down.trainable),
                            Known{.maxima = x_MD.maxima}, &gate_up, &down, others(ranks), keep,
                            gate);
}

}  // namespace dstrain::ops
