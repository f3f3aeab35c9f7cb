#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <optional>

#include "engine/base/error.h"
#include "engine/kernels/experts/experts.h"
#include "engine/kernels/experts/kernels.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What routing gives, and what its backward needs beside the logits.
struct Routed {
  at::Tensor weights, choices, log_sum, share;
};

template <typename T>
T* pointer(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<T>() : nullptr;
}

bool balanced(const RouterLosses& losses) { return losses.seed.defined() && losses.balance > 0; }

Routed route_cpu(const at::Tensor& logits, const RouterShape& shape) {
  const at::Tensor wide = logits.to(at::kFloat);
  const at::Tensor log_sum = at::logsumexp(wide, {1});
  const at::Tensor choices =
      std::get<1>(wide.sort(std::optional<bool>(true), 1, /*descending=*/true))
          .narrow(1, 0, shape.chosen);
  at::Tensor weights = (wide.gather(1, choices) - log_sum.unsqueeze(1)).exp();
  if (shape.normalize) weights = weights / weights.sum(1, true);
  return {weights, choices.to(at::kInt).contiguous(), log_sum, {}};
}

Routed route_cuda(const at::Tensor& logits, const RouterShape& shape) {
  const std::int64_t rows = logits.size(0);
  Routed out{scratch(logits, {rows, shape.chosen}),
             at::empty({rows, shape.chosen}, logits.options().dtype(at::kInt)),
             scratch(logits, {rows}),
             {}};
  kernels::cuda::route({.logits = logits.const_data_ptr(),
                        .choices = out.choices.mutable_data_ptr<std::int32_t>(),
                        .weights = out.weights.mutable_data_ptr<float>(),
                        .log_sum = out.log_sum.mutable_data_ptr<float>(),
                        .rows = rows,
                        .experts = shape.experts,
                        .chosen = shape.chosen,
                        .normalize = shape.normalize,
                        .dtype = kernel_dtype(logits)},
                       current_stream());
  return out;
}

/// 1 for each sample that is no filler, else 0: [B].
at::Tensor counted_samples(std::int64_t samples, const RouterLosses& losses) {
  const at::Tensor number = at::arange(samples, losses.seed.options().dtype(at::kInt));
  return (losses.valid.defined() ? number.lt(losses.valid) : number.ge(0)).to(at::kFloat);
}

at::Tensor shares_cpu(const at::Tensor& logits, const Routed& routed, const RouterLosses& losses) {
  const std::int64_t experts = logits.size(1), samples = logits.size(0) / losses.tokens;
  const auto per_sample = [&](const at::Tensor& x) {
    return x.view({samples, losses.tokens, experts}).mean(1);
  };
  const at::Tensor chosen =
      at::zeros({logits.size(0), experts}).scatter_(1, routed.choices.to(at::kLong), 1);
  const at::Tensor share = per_sample(chosen) * counted_samples(samples, losses).unsqueeze(1);
  if (losses.loss_sum.defined()) {
    const at::Tensor p = (logits.to(at::kFloat) - routed.log_sum.unsqueeze(1)).exp();
    losses.loss_sum.add_((share * per_sample(p)).sum(),
                         losses.loss_factor * static_cast<double>(experts));
  }
  return share;
}

at::Tensor shares_cuda(const at::Tensor& logits, const Routed& routed, const RouterLosses& losses) {
  const std::int64_t experts = logits.size(1), samples = logits.size(0) / losses.tokens;
  at::Tensor share = scratch(logits, {samples, experts});
  const at::Tensor partial =
      scratch(logits, {kernels::expert_share_partials(samples, losses.tokens, experts)});
  kernels::cuda::expert_shares({.logits = logits.const_data_ptr(),
                                .log_sum = routed.log_sum.const_data_ptr<float>(),
                                .choices = routed.choices.const_data_ptr<std::int32_t>(),
                                .valid = pointer<std::int32_t>(losses.valid),
                                .share = share.mutable_data_ptr<float>(),
                                .loss_sum = pointer<float>(losses.loss_sum),
                                .partial = partial.mutable_data_ptr<float>(),
                                .factor = static_cast<float>(losses.loss_factor),
                                .samples = samples,
                                .tokens = losses.tokens,
                                .experts = experts,
                                .chosen = routed.choices.size(1),
                                .dtype = kernel_dtype(logits)},
                               current_stream());
  return share;
}

at::Tensor backward_cpu(const at::Tensor& logits, const Routed& routed, const at::Tensor& grad,
                        bool normalize, const RouterLosses& losses) {
  const std::int64_t experts = logits.size(1);
  const at::Tensor p = (logits.to(at::kFloat) - routed.log_sum.unsqueeze(1)).exp();
  const at::Tensor choices = routed.choices.to(at::kLong);
  at::Tensor of_weights = grad;
  if (normalize)
    of_weights = (grad - (grad * routed.weights).sum(1, true)) / p.gather(1, choices).sum(1, true);
  at::Tensor of_p = at::zeros_like(p).scatter_(1, choices, of_weights);
  at::Tensor of_log_sum = at::zeros({}, p.options());
  if (losses.seed.defined()) {
    const std::int64_t samples = logits.size(0) / losses.tokens;
    const at::Tensor per_token = losses.seed / static_cast<double>(losses.tokens);
    if (routed.share.defined()) {
      const at::Tensor of_sample =
          routed.share * per_token * (losses.balance * static_cast<double>(experts));
      of_p = of_p + of_sample.repeat_interleave(losses.tokens, 0);
    }
    const at::Tensor counted =
        counted_samples(samples, losses).repeat_interleave(losses.tokens, 0).unsqueeze(1);
    of_log_sum = 2 * losses.z * per_token * counted * routed.log_sum.unsqueeze(1);
  }
  return (p * (of_p - (p * of_p).sum(1, true) + of_log_sum)).to(logits.scalar_type());
}

at::Tensor backward_cuda(const at::Tensor& logits, const Routed& routed, const at::Tensor& grad,
                         bool normalize, const RouterLosses& losses) {
  at::Tensor out = at::empty_like(logits);
  kernels::cuda::route_backward({.logits = logits.const_data_ptr(),
                                 .choices = routed.choices.const_data_ptr<std::int32_t>(),
                                 .weights = routed.weights.const_data_ptr<float>(),
                                 .log_sum = routed.log_sum.const_data_ptr<float>(),
                                 .grad_weights = grad.const_data_ptr<float>(),
                                 .seed = pointer<float>(losses.seed),
                                 .share = pointer<float>(routed.share),
                                 .valid = pointer<std::int32_t>(losses.valid),
                                 .grad_logits = out.mutable_data_ptr(),
                                 .balance = static_cast<float>(losses.balance),
                                 .z = static_cast<float>(losses.z),
                                 .rows = logits.size(0),
                                 .tokens = losses.seed.defined() ? losses.tokens : logits.size(0),
                                 .experts = logits.size(1),
                                 .chosen = routed.choices.size(1),
                                 .normalize = normalize,
                                 .dtype = kernel_dtype(logits)},
                                current_stream());
  return out;
}

struct Route : torch::autograd::Function<Route> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const RouterShape& shape, const RouterLosses& losses) {
    const at::Tensor logits = dense(input);
    Routed routed = logits.is_cuda() ? route_cuda(logits, shape) : route_cpu(logits, shape);
    if (balanced(losses))
      routed.share = (logits.is_cuda() ? shares_cuda : shares_cpu)(logits, routed, losses);
    context->save_for_backward({logits, routed.weights, routed.choices, routed.log_sum});
    context->mark_non_differentiable({routed.choices});
    // Of the step and the micro-batch, not of this graph: their memory is held elsewhere.
    context->saved_data["share"] = routed.share;
    context->saved_data["seed"] = losses.seed;
    context->saved_data["valid"] = losses.valid;
    context->saved_data["tokens"] = losses.tokens;
    context->saved_data["balance"] = losses.balance;
    context->saved_data["z"] = losses.z;
    context->saved_data["normalize"] = shape.normalize;
    return {routed.weights, routed.choices};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto& data = context->saved_data;
    const Routed routed{saved[1], saved[2], saved[3], data.at("share").toTensor()};
    const RouterLosses losses{.balance = data.at("balance").toDouble(),
                              .z = data.at("z").toDouble(),
                              .tokens = data.at("tokens").toInt(),
                              .seed = data.at("seed").toTensor(),
                              .valid = data.at("valid").toTensor()};
    const bool on_gpu = saved[0].is_cuda();
    return {(on_gpu ? backward_cuda : backward_cpu)(saved[0], routed, dense(grads[0]),
                                                    data.at("normalize").toBool(), losses),
            {},
            {}};
  }
};

}  // namespace

Routes route(const at::Tensor& logits_ME, const RouterShape& shape, const RouterLosses& losses) {
  DSTRAIN_CHECK(
      logits_ME.dim() == 2 && logits_ME.size(1) == shape.experts && shape.chosen >= 1 &&
          shape.chosen <= shape.experts &&
          (!losses.seed.defined() || (losses.tokens > 0 && logits_ME.size(0) % losses.tokens == 0)),
      fmt::format("route: logits {}, {} of {} experts, samples of {} tokens", shape_of(logits_ME),
                  shape.chosen, shape.experts, losses.tokens));
  const variable_list out = Route::apply(logits_ME, shape, losses);
  return {out[0], out[1]};
}

std::int64_t route_saved_bytes(const RouterShape& shape, std::int64_t rows, int element_bytes) {
  constexpr std::int64_t kWord = 4;
  return rows * (shape.experts * element_bytes + 2 * shape.chosen * kWord + kWord);
}

}  // namespace dstrain::ops
