#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/activation/drop_context.h"
#include "engine/kernels/activation/gate_context.h"
#include "engine/kernels/activation/swiglu.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/linear/linear_map.h"
#include "engine/kernels/linear/low_rank_terms.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Terms write each of `columns`, and each term the biases of its own.
bool fill(const Terms& terms, std::int64_t columns, const Parameter* bias) {
  constexpr std::int64_t kAligned = 8;  // elements: a product's bias starts at 16 bytes
  std::int64_t filled = 0;
  for (const LowRankTerm& term : terms) {
    filled += term.b->shape.front();
    if (bias != nullptr && term.column % kAligned != 0) return false;
  }
  return filled == columns;
}

void keep_terms(AutogradContext* context, const Terms& terms) {
  context->saved_data["terms"] = static_cast<std::int64_t>(terms.size());
  for (std::size_t t = 0; t < terms.size(); ++t) {
    const std::string at = std::to_string(t);
    keep(context, ("a" + at).c_str(), terms[t].a);
    keep(context, ("b" + at).c_str(), terms[t].b);
    context->saved_data["scale" + at] = terms[t].scale;
    context->saved_data["column" + at] = terms[t].column;
    keep_mask(context, terms[t].mask, at);
  }
}

Terms kept_terms(AutogradContext* context) {
  Terms terms(static_cast<std::size_t>(context->saved_data.at("terms").toInt()));
  for (std::size_t t = 0; t < terms.size(); ++t) {
    const std::string at = std::to_string(t);
    terms[t] = {.a = &kept(context, ("a" + at).c_str()),
                .b = &kept(context, ("b" + at).c_str()),
                .scale = context->saved_data.at("scale" + at).toDouble(),
                .column = context->saved_data.at("column" + at).toInt(),
                .mask = kept_mask(context, at)};
  }
  return terms;
}

/// x weight^T + bias with the terms of u. They come first, where they fill y, since a large product
/// that adds to it hides the traffic of the sum.
LinearOutput adapted_output(const Measured& x, const at::Tensor& u, Parameter& weight,
                            Parameter* bias, const Terms& terms, Keep keeping) {
  const at::Tensor& rows = x.rows;
  const std::vector<at::Tensor> parts = by_term(u, terms);
  const bool filled = fill(terms, weight.shape.front(), bias);
  const auto add_terms = [&](const at::Tensor& y) {
    for (std::size_t t = 0; t < terms.size(); ++t) {
      const at::Tensor& up = value_of(*terms[t].b, rows);
      const std::int64_t column = terms[t].column, columns = up.size(0);
      at::Tensor own_bias;
      if (filled && bias != nullptr) own_bias = value_of(*bias, rows).narrow(0, column, columns);
      multiply(parts[t], up.t(), y.narrow(1, column, columns),
               {.alpha = terms[t].scale, .add = !filled, .bias = own_bias});
    }
  };
  at::Tensor terms_sum;
  if (filled) {
    terms_sum = empty_output(rows, rows.size(0), weight, bias).y;
    add_terms(terms_sum);
  }
  LinearOutput out = apply_linear(x, weight, filled ? nullptr : bias, keeping, terms_sum);
  if (!filled) add_terms(out.y);
  return out;
}

bool trains(const Terms& terms, Parameter* LowRankTerm::*of) {
  return std::ranges::any_of(terms, [&](const auto& term) { return (term.*of)->trainable; });
}

/// Saves x and u = dropout(x) a^T, which is narrow; masks are drawn again.
struct AdaptedLinear : torch::autograd::Function<AdaptedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const Known& known, Parameter* weight,
                            Parameter* bias, const Terms& terms) {
    const at::Tensor x = dense(input), u = narrow_rows(x, terms);
    const LinearOutput out =
        adapted_output({x, known.maxima}, u, *weight, bias, terms, Keep::input);
    context->save_for_backward({trains(terms, &LowRankTerm::a) ? x : at::Tensor(),
                                trains(terms, &LowRankTerm::b) ? u : at::Tensor(), out.kept,
                                out.scale, out.weight_scale});
    keep(context, "weight", weight);
    keep(context, "bias", bias);
    keep_terms(context, terms);
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &u = saved[1];
    const Terms terms = kept_terms(context);
    Parameter& weight = kept(context, "weight");
    const bool for_input = context->needs_input_grad(0);
    const at::Tensor grad = dense(grads[0]);
    const LinearGradient dy(grad, weight, kept_or_null(context, "bias"), for_input);
    dy.add_to_parameters(saved[2], saved[3]);
    const at::Tensor du = narrow_gradient(grad, u, terms, x.defined() || for_input);
    at::Tensor dx = wide_gradient(du, x, terms, for_input);
    if (for_input) dx = dy.input(saved[4], dx);
    return {dx, {}, {}, {}, {}, {}};
  }
};

/// Saves gate, up and u; h = act(gate) up is made again.
struct AdaptedSwigluLinear : torch::autograd::Function<AdaptedSwigluLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* weight, const Terms& terms,
                            GateActivation gate) {
    const at::Tensor gate_up = dense(input), maxima = maxima_for(*weight, gate_up);
    const at::Tensor h = swiglu_of(gate_up, gate, maxima), u = narrow_rows(h, terms);
    const LinearOutput out = adapted_output({h, maxima}, u, *weight, nullptr, terms, Keep::nothing);
    context->save_for_backward(
        {gate_up, trains(terms, &LowRankTerm::b) ? u : at::Tensor(), out.scale, out.weight_scale});
    keep_gate(context, gate);
    keep(context, "weight", weight);
    keep_terms(context, terms);
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &gate_up = saved[0], &scale = saved[2];
    const Terms terms = kept_terms(context);
    const GateActivation gate = kept_gate(context);
    Parameter& weight = kept(context, "weight");
    const at::Tensor grad = dense(grads[0]);
    const LinearGradient dy(grad, weight, nullptr, /*for_input=*/true);
    const at::Tensor du = narrow_gradient(grad, saved[1], terms, /*wanted=*/true);
    if (!weight.trainable && gated_in_kernels(gate_up, terms))
      return {gated_gradient(du, dy.input(saved[3]), gate_up, gate, terms), {}, {}, {}, {}};
    at::Tensor h = swiglu_of(gate_up, gate);
    const at::Tensor dh = dy.input(saved[3], wide_gradient(du, h, terms, /*for_input=*/true));
    if (weight.trainable) {
      if (scale.defined())
        h = quantize(h, kernels::Fp8Format::e4m3, Sides::columns, {.scale = scale}).columns;
      dy.add_to_parameters(h, scale);
    }
    return {swiglu_gradients(gate_up, gate, dh, /*again=*/false).gate_up, {}, {}, {}, {}};
  }
};

/// Throws unless the terms are those of an input like `x` [M, columns]; whether anything is
/// trained.
bool check_terms(const at::Tensor& x, std::int64_t columns, const Parameter& weight,
                 const Terms& terms) {
  DSTRAIN_CHECK(!terms.empty(), "adapted_linear without adapters");
  bool any_trainable = weight.trainable;
  for (const LowRankTerm& term : terms) {
    const at::Tensor &down = value_of(*term.a, x), &up = value_of(*term.b, x);
    const DropMask& mask = term.mask;
    DSTRAIN_CHECK(down.dim() == 2 && up.dim() == 2 && down.size(1) == columns &&
                      up.size(1) == down.size(0) && term.column >= 0 &&
                      term.column + up.size(0) <= weight.shape.front() && mask.share >= 0 &&
                      mask.share < 1 && (mask.share == 0 || mask.seed.defined()) &&
                      (!mask.rows.defined() || is_vector(mask.rows, x.size(0), at::kInt, x)),
                  fmt::format("adapted_linear: x {}, weight {}, a {}, b {}, column {}, dropout {}",
                              shape_of(x), shape_of(weight.value), shape_of(down), shape_of(up),
                              term.column, mask.share));
    any_trainable = any_trainable || term.a->trainable || term.b->trainable;
  }
  return any_trainable;
}

}  // namespace

at::Tensor adapted_linear(const Measured& x_MK, Parameter& weight, Parameter* bias,
                          const std::vector<LowRankTerm>& terms) {
  const at::Tensor& x = x_MK.rows;
  check_linear(x, weight, bias);
  const bool any_trainable =
      check_terms(x, x.size(1), weight, terms) || (bias != nullptr && bias->trainable);
  return AdaptedLinear::apply(x, anchor_for(x, any_trainable), Known{.maxima = x_MK.maxima},
                              &weight, bias, terms);
}

at::Tensor adapted_swiglu_linear(const at::Tensor& gate_up, Parameter& weight,
                                 const std::vector<LowRankTerm>& terms, GateActivation gate) {
  DSTRAIN_CHECK(gate_up.dim() == 2 && gate_up.size(1) == 2 * columns_of(weight),
                fmt::format("adapted_swiglu_linear: gate_up {}, weight {}", shape_of(gate_up),
                            shape_of(weight.value)));
  const bool any_trainable = check_terms(gate_up, columns_of(weight), weight, terms);
  return AdaptedSwigluLinear::apply(gate_up, anchor_for(gate_up, any_trainable), &weight, terms,
                                    gate);
}

}  // namespace dstrain::ops
