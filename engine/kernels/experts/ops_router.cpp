#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
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

/// Samples and rows of RouterLosses for logits of `rows` rows.
struct Samples {
  std::int64_t number, rows_of_each, first_row;
};

Samples samples_of(std::int64_t rows, const RouterLosses& losses) {
  const SampleParts& parts = losses.parts;
  const std::int64_t rows_of_each = losses.tokens / parts.sequence;
  return {rows * parts.rows.count / rows_of_each, rows_of_each, rows * parts.rows.index};
}

bool whole_samples(std::int64_t rows, const RouterLosses& losses) {
  const SampleParts& parts = losses.parts;
  return losses.tokens > 0 && losses.tokens % parts.sequence == 0 &&
         rows * parts.rows.count % (losses.tokens / parts.sequence) == 0;
}

/// The sample of each row: [M].
at::Tensor sample_of_rows(std::int64_t rows, const RouterLosses& losses) {
  const Samples samples = samples_of(rows, losses);
  return at::arange(samples.first_row, samples.first_row + rows, at::kLong)
      .floor_divide(samples.rows_of_each);
}

/// Tokens of each sample that count: [B].
at::Tensor tokens_of_samples(std::int64_t samples, const RouterLosses& losses) {
  return losses.lengths.defined()
             ? losses.lengths.to(at::kFloat)
             : at::full({samples}, static_cast<double>(losses.tokens), at::kFloat);
}

/// 1 for each row that counts, else 0: [M].
at::Tensor rows_that_count(std::int64_t rows, const RouterLosses& losses) {
  if (!losses.lengths.defined()) return at::ones({rows});
  const std::int64_t first = samples_of(rows, losses).first_row;
  const at::Tensor& places = losses.parts.places;
  const at::Tensor place = places.defined() ? places.narrow(0, first, rows).to(at::kLong)
                                            : at::arange(first, first + rows, at::kLong);
  const at::Tensor lengths = losses.lengths.index_select(0, sample_of_rows(rows, losses));
  return place.remainder(losses.tokens).lt(lengths).to(at::kFloat);
}

/// Probabilities and choices of the rows here by sample and expert: [2, B, E].
at::Tensor sums_cpu(const at::Tensor& logits, const Routed& routed, const RouterLosses& losses) {
  const std::int64_t rows = logits.size(0), experts = logits.size(1);
  const at::Tensor p = (logits.to(at::kFloat) - routed.log_sum.unsqueeze(1)).exp();
  const at::Tensor chosen = at::zeros({rows, experts}).scatter_(1, routed.choices.to(at::kLong), 1);
  return at::zeros({2, samples_of(rows, losses).number, experts})
      .index_add_(1, sample_of_rows(rows, losses),
                  at::stack({p, chosen}) * rows_that_count(rows, losses).unsqueeze(1));
}

at::Tensor sums_cuda(const at::Tensor& logits, const Routed& routed, const RouterLosses& losses) {
  const std::int64_t rows = logits.size(0), experts = logits.size(1);
  const auto [samples, rows_of_each, first_row] = samples_of(rows, losses);
  at::Tensor sums = scratch(logits, {2, samples, experts});
  const at::Tensor partial =
      scratch(logits, {kernels::expert_sums_scratch(samples, rows_of_each, experts)});
  kernels::cuda::expert_sums({.logits = logits.const_data_ptr(),
                              .log_sum = routed.log_sum.const_data_ptr<float>(),
                              .choices = routed.choices.const_data_ptr<std::int32_t>(),
                              .lengths = pointer<std::int32_t>(losses.lengths),
                              .places = pointer<std::int32_t>(losses.parts.places),
                              .sums = sums.mutable_data_ptr<float>(),
                              .partial = partial.mutable_data_ptr<float>(),
                              .rows = rows,
                              .first_row = first_row,
                              .sample_rows = rows_of_each,
                              .samples = samples,
                              .tokens = losses.tokens,
                              .experts = experts,
                              .chosen = routed.choices.size(1),
                              .dtype = kernel_dtype(logits)},
                             current_stream());
  return sums;
}

at::Tensor shares_cpu(const at::Tensor& sums, const RouterLosses& losses) {
  // A sample without tokens has sums of 0.
  const at::Tensor tokens = tokens_of_samples(sums.size(1), losses).clamp_min(1).unsqueeze(1);
  const at::Tensor share = sums[1] / tokens;
  if (losses.loss_sum.defined()) {
    losses.loss_sum.add_((share * (sums[0] / tokens)).sum(),
                         losses.loss_factor * static_cast<double>(sums.size(2)));
  }
  return share;
}

at::Tensor shares_cuda(const at::Tensor& sums, const RouterLosses& losses) {
  at::Tensor share = scratch(sums, {sums.size(1), sums.size(2)});
  kernels::cuda::expert_shares({.sums = sums.const_data_ptr<float>(),
                                .lengths = pointer<std::int32_t>(losses.lengths),
                                .share = share.mutable_data_ptr<float>(),
                                .loss_sum = pointer<float>(losses.loss_sum),
                                .factor = static_cast<float>(losses.loss_factor),
                                .samples = sums.size(1),
                                .tokens = losses.tokens,
                                .experts = sums.size(2)},
                               current_stream());
  return share;
}

/// The part of each sample's tokens that chose each expert: [B, E].
at::Tensor shares_of(const at::Tensor& logits, const Routed& routed, RouterLosses losses) {
  at::Tensor sums = (logits.is_cuda() ? sums_cuda : sums_cpu)(logits, routed, losses);
  if (Communicator* ranks = losses.parts.ranks; ranks != nullptr) {
    ranks->all_reduce(sums, ReduceOp::sum);
    if (ranks->rank() != 0) losses.loss_sum.reset();
  }
  return (logits.is_cuda() ? shares_cuda : shares_cpu)(sums, losses);
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
    const std::int64_t rows = logits.size(0);
    const at::Tensor sample = sample_of_rows(rows, losses);
    const at::Tensor tokens = tokens_of_samples(samples_of(rows, losses).number, losses)
                                  .clamp_min(1)
                                  .index_select(0, sample);
    const at::Tensor per_token = (losses.seed * rows_that_count(rows, losses) / tokens).unsqueeze(1);
    if (routed.share.defined()) {
      of_p = of_p + routed.share.index_select(0, sample) * per_token *
                        (losses.balance * static_cast<double>(experts));
    }
    of_log_sum = 2 * losses.z * per_token * routed.log_sum.unsqueeze(1);
  }
  return (p * (of_p - (p * of_p).sum(1, true) + of_log_sum)).to(logits.scalar_type());
}

at::Tensor backward_cuda(const at::Tensor& logits, const Routed& routed, const at::Tensor& grad,
                         bool normalize, const RouterLosses& losses) {
  at::Tensor out = at::empty_like(logits);
  const std::int64_t rows = logits.size(0);
  const Samples samples = losses.seed.defined() ? samples_of(rows, losses) : Samples{1, rows, 0};
  kernels::cuda::route_backward({.logits = logits.const_data_ptr(),
                                 .choices = routed.choices.const_data_ptr<std::int32_t>(),
                                 .weights = routed.weights.const_data_ptr<float>(),
                                 .log_sum = routed.log_sum.const_data_ptr<float>(),
                                 .grad_weights = grad.const_data_ptr<float>(),
                                 .seed = pointer<float>(losses.seed),
                                 .share = pointer<float>(routed.share),
                                 .lengths = pointer<std::int32_t>(losses.lengths),
                                 .places = pointer<std::int32_t>(losses.parts.places),
                                 .grad_logits = out.mutable_data_ptr(),
                                 .balance = static_cast<float>(losses.balance),
                                 .z = static_cast<float>(losses.z),
                                 .rows = rows,
                                 .first_row = samples.first_row,
                                 .sample_rows = samples.rows_of_each,
                                 .tokens = losses.seed.defined() ? losses.tokens : rows,
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
    if (balanced(losses)) routed.share = shares_of(logits, routed, losses);
    context->save_for_backward({logits, routed.weights, routed.choices, routed.log_sum});
    context->mark_non_differentiable({routed.choices});
    // These are of the step and the micro-batch, not of this graph: their memory is held elsewhere.
    context->saved_data["share"] = routed.share;
    context->saved_data["seed"] = losses.seed;
    context->saved_data["lengths"] = losses.lengths;
    context->saved_data["places"] = losses.parts.places;
    context->saved_data["tokens"] = losses.tokens;
    context->saved_data["sequence"] = losses.parts.sequence;
    context->saved_data["part"] = losses.parts.rows.index;
    context->saved_data["parts"] = losses.parts.rows.count;
    context->saved_data["balance"] = losses.balance;
    context->saved_data["z"] = losses.z;
    context->saved_data["normalize"] = shape.normalize;
    return {routed.weights, routed.choices};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto& data = context->saved_data;
    const Routed routed{saved[1], saved[2], saved[3], data.at("share").toTensor()};
    const auto number = [&data](const char* name) {
      return static_cast<int>(data.at(name).toInt());
    };
    const RouterLosses losses{.balance = data.at("balance").toDouble(),
                              .z = data.at("z").toDouble(),
                              .tokens = data.at("tokens").toInt(),
                              .seed = data.at("seed").toTensor(),
                              .lengths = data.at("lengths").toTensor(),
                              .parts = {.sequence = number("sequence"),
                                        .places = data.at("places").toTensor(),
                                        .rows = {number("part"), number("parts")}}};
    const bool on_gpu = saved[0].is_cuda();
    return {(on_gpu ? backward_cuda : backward_cpu)(saved[0], routed, dense(grads[0]),
                                                    data.at("normalize").toBool(), losses),
            {},
            {}};
  }
};

}  // namespace

Routes route(const at::Tensor& logits_ME, const RouterShape& shape, const RouterLosses& losses) {
  DSTRAIN_CHECK(logits_ME.dim() == 2 && logits_ME.size(1) == shape.experts && shape.chosen >= 1 &&
                    shape.chosen <= shape.experts &&
                    (!losses.seed.defined() || whole_samples(logits_ME.size(0), losses)),
                fmt::format("route: logits {}, {} of {} experts, samples of {} tokens",
                            shape_of(logits_ME), shape.chosen, shape.experts, losses.tokens));
  const variable_list out = Route::apply(logits_ME, shape, losses);
  return {out[0], out[1]};
}

std::int64_t route_saved_bytes(const RouterShape& shape, std::int64_t rows, int element_bytes) {
  constexpr std::int64_t kWord = 4;
  return rows * (shape.experts * element_bytes + 2 * shape.chosen * kWord + kWord);
}

std::int64_t balance_bytes(const RouterShape& shape, std::int64_t samples) {
  return 2 * samples * shape.experts * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace dstrain::ops
