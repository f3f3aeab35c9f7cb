#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <optional>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/kernels/activation/swiglu.h"
#include "engine/kernels/experts/expert_products.h"
#include "engine/kernels/experts/experts.h"
#include "engine/kernels/experts/kernels.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/linear_map.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Sums of rows by their places, the weights 1 where they are undefined.
at::Tensor sum_rows(const at::Tensor& y, const at::Tensor& place, const at::Tensor& weights,
                    const at::Tensor& shared, const at::Tensor& gate) {
  const std::int64_t rows = place.size(0), chosen = place.size(1), dim = y.size(1);
  if (!y.is_cuda()) {
    const at::Tensor index = place.to(at::kLong);
    at::Tensor sum = at::zeros({rows, dim});
    for (std::int64_t j = 0; j < chosen; ++j) {
      const at::Tensor row = y.index_select(0, index.select(1, j)).to(at::kFloat);
      sum += weights.defined() ? row * weights.narrow(1, j, 1) : row;
    }
    if (shared.defined()) sum += at::sigmoid(gate.to(at::kFloat)) * shared.to(at::kFloat);
    return sum.to(y.scalar_type());
  }
  at::Tensor out = at::empty({rows, dim}, y.options());
  const auto address = [](const at::Tensor& x) {
    return x.defined() ? x.const_data_ptr() : nullptr;
  };
  kernels::cuda::combine_rows({.y = y.const_data_ptr(),
                               .place = place.const_data_ptr<std::int32_t>(),
                               .weights = static_cast<const float*>(address(weights)),
                               .shared = address(shared),
                               .gate = address(gate),
                               .out = out.mutable_data_ptr(),
                               .rows = rows,
                               .chosen = chosen,
                               .dim = dim,
                               .dtype = kernel_dtype(y)},
                              current_stream());
  return out;
}

/// Each row at its places.
at::Tensor spread(const at::Tensor& x, const at::Tensor& place) {
  const std::int64_t rows = x.size(0), chosen = place.size(1), dim = x.size(1);
  at::Tensor out = at::empty({rows * chosen, dim}, x.options());
  if (!x.is_cuda())
    return out.index_copy_(0, place.flatten().to(at::kLong), x.repeat_interleave(chosen, 0));
  kernels::cuda::spread_rows({.x = x.const_data_ptr(),
                              .place = place.const_data_ptr<std::int32_t>(),
                              .out = out.mutable_data_ptr(),
                              .rows = rows,
                              .chosen = chosen,
                              .dim = dim,
                              .dtype = kernel_dtype(x)},
                             current_stream());
  return out;
}

struct SpreadRows : torch::autograd::Function<SpreadRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& place) {
    context->save_for_backward({place});
    return spread(dense(x), place);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {sum_rows(dense(grads[0]), context->get_saved_variables()[0], {}, {}, {}), {}};
  }
};

struct GatherRows : torch::autograd::Function<GatherRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y,
                            const at::Tensor& place) {
    context->save_for_backward({place});
    return sum_rows(dense(y), place, {}, {}, {});
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {spread(dense(grads[0]), context->get_saved_variables()[0]), {}};
  }
};

struct CombineGradients {
  at::Tensor y, weights, shared, gate;
};

CombineGradients combine_backward_cpu(const variable_list& saved, const at::Tensor& grad) {
  const at::Tensor &y = saved[0], &weights = saved[2], &shared = saved[3], &gate = saved[4];
  const at::Tensor place = saved[1].to(at::kLong), wide = grad.to(at::kFloat);
  CombineGradients out{at::empty_like(y), at::empty_like(weights), {}, {}};
  for (std::int64_t j = 0; j < place.size(1); ++j) {
    const at::Tensor rows = place.select(1, j);
    out.weights.select(1, j).copy_((y.index_select(0, rows).to(at::kFloat) * wide).sum(1));
    out.y.index_copy_(0, rows, (wide * weights.narrow(1, j, 1)).to(y.scalar_type()));
  }
  if (!shared.defined()) return out;
  const at::Tensor s = at::sigmoid(gate.to(at::kFloat));
  out.shared = (wide * s).to(y.scalar_type());
  out.gate = ((wide * shared.to(at::kFloat)).sum(1, true) * s * (1 - s)).to(y.scalar_type());
  return out;
}

CombineGradients combine_backward_cuda(const variable_list& saved, const at::Tensor& grad) {
  const at::Tensor &y = saved[0], &place = saved[1], &weights = saved[2], &shared = saved[3],
                   &gate = saved[4];
  CombineGradients out{at::empty_like(y), at::empty_like(weights), {}, {}};
  if (shared.defined()) {
    out.shared = at::empty_like(shared);
    out.gate = at::empty_like(gate);
  }
  const auto address = [](const at::Tensor& x) {
    return x.defined() ? x.mutable_data_ptr() : nullptr;
  };
  kernels::cuda::combine_rows_backward({.y = y.const_data_ptr(),
                                        .place = place.const_data_ptr<std::int32_t>(),
                                        .weights = weights.const_data_ptr<float>(),
                                        .shared = address(shared),
                                        .gate = address(gate),
                                        .grad_out = grad.const_data_ptr(),
                                        .grad_y = out.y.mutable_data_ptr(),
                                        .grad_weights = out.weights.mutable_data_ptr<float>(),
                                        .grad_shared = address(out.shared),
                                        .grad_gate = address(out.gate),
                                        .rows = place.size(0),
                                        .chosen = place.size(1),
                                        .dim = y.size(1),
                                        .dtype = kernel_dtype(y)},
                                       current_stream());
  return out;
}

struct CombineRows : torch::autograd::Function<CombineRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y_in,
                            const at::Tensor& place, const at::Tensor& weights,
                            const std::optional<at::Tensor>& shared_in,
                            const std::optional<at::Tensor>& gate_in) {
    const at::Tensor y = dense(y_in);
    const at::Tensor shared = shared_in ? dense(*shared_in) : at::Tensor();
    const at::Tensor gate = gate_in ? dense(*gate_in) : at::Tensor();
    context->save_for_backward({y, place, weights, shared, gate});
    return sum_rows(y, place, weights, shared, gate);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad = dense(grads[0]);
    CombineGradients out =
        (grad.is_cuda() ? combine_backward_cuda : combine_backward_cpu)(saved, grad);
    return {out.y, {}, out.weights, out.shared, out.gate};
  }
};

/// Adds to the weight's gradient now, or later where it asks for that.
void add_gradients_or_defer(const at::Tensor& x, const at::Tensor& dy, Parameter& weight,
                            const ExpertRows& rows) {
  const GradientSink sink(weight, dy);
  if (!sink.wanted()) return;
  if (!sink.deferred()) return add_expert_gradients(x, dy, weight, rows);
  sink.defer([x = x.detach(), dy, &weight, rows] { add_expert_gradients(x, dy, weight, rows); });
}

struct ExpertMlps : torch::autograd::Function<ExpertMlps> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&,
                            const std::vector<std::int64_t>& counts, Parameter* gate_up,
                            Parameter* down) {
    const at::Tensor x = dense(input);
    // The kernel for all experts reads whole packs of their rows.
    const bool packed = kernels::kExpertDims.has(columns_of(*down));
    const ExpertRows rows =
        expert_rows(counts, x, packed ? ExpertKernel::automatic : ExpertKernel::single);
    const at::Tensor both = expert_products(x, *gate_up, rows, true);
    context->save_for_backward({gate_up->trainable ? x : at::Tensor(), both, rows.ends});
    context->saved_data["counts"] = counts;
    keep(context, "gate_up", gate_up);
    keep(context, "down", down);
    return expert_products(swiglu_of(both, GateActivation::silu), *down, rows, true);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const ExpertRows rows{.counts = context->saved_data.at("counts").toIntVector(),
                          .ends = saved[2]};
    Parameter &gate_up = kept(context, "gate_up"), &down = kept(context, "down");
    const at::Tensor dy = dense(grads[0]);
    SwigluGradients inner = swiglu_gradients(
        saved[1], GateActivation::silu, expert_products(dy, down, rows, false), down.trainable);
    add_gradients_or_defer(inner.h, dy, down, rows);
    inner.h.reset();
    add_gradients_or_defer(saved[0], inner.gate_up, gate_up, rows);
    const bool for_input = context->needs_input_grad(0);
    return {for_input ? expert_products(inner.gate_up, gate_up, rows, false) : at::Tensor(),
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

ExpertOrder sort_by_expert(const at::Tensor& choices_Mk, std::int64_t experts) {
  DSTRAIN_CHECK(
      choices_Mk.dim() == 2 && choices_Mk.scalar_type() == at::kInt && choices_Mk.is_contiguous(),
      fmt::format("sort_by_expert: choices {}", shape_of(choices_Mk)));
  const at::Tensor flat = choices_Mk.flatten();
  if (!choices_Mk.is_cuda()) {
    const at::Tensor order = std::get<1>(flat.sort(std::optional<bool>(true), 0));
    return {at::empty_like(flat)
                .index_copy_(0, order, at::arange(flat.numel(), flat.options()))
                .view_as(choices_Mk),
            at::bincount(flat, {}, experts).to(at::kInt)};
  }
  ExpertOrder out{at::empty_like(choices_Mk), at::empty({experts}, choices_Mk.options())};
  const at::Tensor memory =
      at::empty({kernels::sort_by_expert_scratch(flat.numel(), experts)}, choices_Mk.options());
  kernels::cuda::sort_by_expert({.choices = flat.const_data_ptr<std::int32_t>(),
                                 .place = out.place.mutable_data_ptr<std::int32_t>(),
                                 .counts = out.counts.mutable_data_ptr<std::int32_t>(),
                                 .scratch = memory.mutable_data_ptr<std::int32_t>(),
                                 .choices_count = flat.numel(),
                                 .experts = experts},
                                current_stream());
  return out;
}

at::Tensor place_by_expert(const at::Tensor& counts, std::int64_t experts, std::int64_t rows) {
  DSTRAIN_CHECK(counts.scalar_type() == at::kInt && counts.is_contiguous() && experts > 0 &&
                    counts.numel() % experts == 0,
                fmt::format("place_by_expert: counts {} of {} experts", shape_of(counts), experts));
  const at::Tensor place = at::empty({rows, 1}, counts.options());
  const kernels::PlaceByExpert args{.counts = counts.const_data_ptr<std::int32_t>(),
                                    .place = place.mutable_data_ptr<std::int32_t>(),
                                    .ranks = counts.numel() / experts,
                                    .experts = experts};
  if (counts.is_cuda()) {
    kernels::cuda::place_by_expert(args, current_stream());
  } else {
    kernels::reference::place_by_expert(args);
  }
  return place;
}

at::Tensor spread_rows(const at::Tensor& x_MD, const at::Tensor& place_Mk) {
  DSTRAIN_CHECK(x_MD.dim() == 2 && place_Mk.dim() == 2 && place_Mk.size(0) == x_MD.size(0),
                fmt::format("spread_rows: x {}, place {}", shape_of(x_MD), shape_of(place_Mk)));
  return SpreadRows::apply(x_MD, place_Mk);
}

at::Tensor gather_rows(const at::Tensor& y_MD, const at::Tensor& place_M1) {
  DSTRAIN_CHECK(y_MD.dim() == 2 && place_M1.dim() == 2 && place_M1.size(1) == 1 &&
                    place_M1.size(0) == y_MD.size(0),
                fmt::format("gather_rows: y {}, place {}", shape_of(y_MD), shape_of(place_M1)));
  return GatherRows::apply(y_MD, place_M1);
}

at::Tensor expert_mlps(const at::Tensor& x_RD, const std::vector<std::int64_t>& counts,
                       Parameter& gate_up, Parameter& down) {
  std::int64_t rows = 0;
  for (const std::int64_t count : counts) rows += count;
  const ExpertMatrix first = expert_matrix(gate_up, x_RD, counts.size()),
                     second = expert_matrix(down, x_RD, counts.size());
  DSTRAIN_CHECK(
      x_RD.dim() == 2 && rows == x_RD.size(0) && first.columns == x_RD.size(1) &&
          first.rows == 2 * second.columns,
      fmt::format("expert_mlps: x {} of {} rows by {} experts, gate_up {}, down {}", shape_of(x_RD),
                  rows, counts.size(), shape_of(gate_up.value), shape_of(down.value)));
  return ExpertMlps::apply(x_RD, anchor_for(x_RD, gate_up.trainable || down.trainable), counts,
                           &gate_up, &down);
}

void rehearse_expert_mlps(std::int64_t max_rows, std::int64_t width, std::int64_t expert_width,
                          const at::TensorOptions& options,
                          std::optional<at::ScalarType> gradient) {
  for (const ExpertMatrix& shape :
       {ExpertMatrix{2 * expert_width, width}, ExpertMatrix{width, expert_width}})
    rehearse_expert_products(max_rows, shape, options, gradient);
}

at::Tensor combine_rows(const at::Tensor& y, const at::Tensor& place_Mk,
                        const at::Tensor& weights_Mk, const at::Tensor& shared_MD,
                        const at::Tensor& gate_M1) {
  DSTRAIN_CHECK(
      y.dim() == 2 && place_Mk.numel() == y.size(0) && weights_Mk.sizes() == place_Mk.sizes() &&
          weights_Mk.scalar_type() == at::kFloat && shared_MD.defined() == gate_M1.defined() &&
          (!shared_MD.defined() ||
           (shared_MD.size(0) == place_Mk.size(0) && shared_MD.size(1) == y.size(1) &&
            gate_M1.numel() == place_Mk.size(0))),
      fmt::format("combine_rows: y {}, place {}, weights {}", shape_of(y), shape_of(place_Mk),
                  shape_of(weights_Mk)));
  const auto given = [](const at::Tensor& x) {
    return x.defined() ? std::optional(x) : std::nullopt;
  };
  return CombineRows::apply(y, place_Mk, weights_Mk, given(shared_MD), given(gate_M1));
}

}  // namespace dstrain::ops
