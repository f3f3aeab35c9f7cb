#include "engine/kernels/loss/ops_linear_preference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/loss/logit_chunks.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Kind = PairLoss::Kind;

/// Both answers of each pair, [B] each.
struct AnswerSums {
  at::Tensor chosen, rejected;
};

/// In double, as they are few: nothing is lost beside the fp32 losses of rows.
AnswerSums sums_of_sides(const at::Tensor& rows, const at::Tensor& weights, std::int64_t pairs) {
  const at::Tensor values = rows.view({pairs, -1}), side = weights.view({pairs, -1});
  const at::Tensor zeros = at::zeros_like(values);
  return {at::where(side.gt(0), values, zeros).sum(1, false, at::kDouble),
          at::where(side.lt(0), values, zeros).sum(1, false, at::kDouble)};
}

/// l(y) of both answers, rounded to the fp32 that references are kept in.
AnswerSums log_probabilities(const at::Tensor& x, const Parameter& table,
                             const PairTargets& targets, const LogitLimit& at_once) {
  const RowTargets rows{targets.labels, targets.weights.abs(), targets.softcap};
  const at::Tensor losses = for_each_chunk(x, table, rows, {}, at_once, {}).loss;
  const auto [chosen, rejected] =
      sums_of_sides(losses, targets.weights, targets.references.size(0));
  return {chosen.neg().to(at::kFloat).to(at::kDouble),
          rejected.neg().to(at::kFloat).to(at::kDouble)};
}

/// [B] in double, of each pair: its loss, its derivatives by l of both answers, and rewards and
/// log-probabilities as they are told.
struct PairValues {
  at::Tensor loss;
  AnswerSums slopes, rewards, logps;
};

/// log(o) with o = e^m / (1 - e^m), and its derivative by m. An answer that is certain has no odds:
/// it is taken a little below.
std::pair<at::Tensor, at::Tensor> log_odds(const at::Tensor& mean) {
  constexpr double kCertain = -1e-7;  // the last digit of fp32 below 1
  const at::Tensor m = mean.clamp_max(kCertain);
  const at::Tensor rest = at::expm1(m).neg();  // 1 - e^m
  return {m - rest.log(), rest.reciprocal()};
}

PairValues values_of(const PairLoss& loss, const AnswerSums& l, const AnswerSums& tokens,
                     const at::Tensor& references) {
  const double beta = loss.beta;
  const at::Tensor reference = references.to(at::kDouble);
  const AnswerSums ratio{l.chosen - reference.select(1, 0), l.rejected - reference.select(1, 1)};
  const AnswerSums mean{l.chosen / tokens.chosen, l.rejected / tokens.rejected};
  const auto times = [&](const AnswerSums& sides) {
    return AnswerSums{sides.chosen * beta, sides.rejected * beta};
  };
  switch (loss.kind) {
    case Kind::none:
      break;
    case Kind::dpo: {
      const at::Tensor z = (ratio.chosen - ratio.rejected) * beta;
      const double e = loss.smoothing;
      const at::Tensor slope = (at::sigmoid(z.neg()) * (1 - e) - at::sigmoid(z) * e) * -beta;
      return {.loss = at::log_sigmoid(z) * (e - 1) - at::log_sigmoid(z.neg()) * e,
              .slopes = {slope, slope.neg()},
              .rewards = times(ratio),
              .logps = l};
    }
    case Kind::ipo: {
      const at::Tensor off =
          ratio.chosen / tokens.chosen - ratio.rejected / tokens.rejected - 1 / (2 * beta);
      return {.loss = off.square(),
              .slopes = {off * 2 / tokens.chosen, off * -2 / tokens.rejected},
              .rewards = times(ratio),
              .logps = l};
    }
    case Kind::simpo: {
      const at::Tensor z = (mean.chosen - mean.rejected) * beta - loss.gamma;
      const at::Tensor slope = at::sigmoid(z.neg()) * -beta;
      return {.loss = at::log_sigmoid(z).neg(),
              .slopes = {slope / tokens.chosen, slope.neg() / tokens.rejected},
              .rewards = times(mean),
              .logps = mean};
    }
    case Kind::orpo: {
      const auto [chosen, by_chosen] = log_odds(mean.chosen);
      const auto [rejected, by_rejected] = log_odds(mean.rejected);
      const at::Tensor z = chosen - rejected, slope = at::sigmoid(z.neg()) * -beta;
      return {.loss = mean.chosen.neg() - at::log_sigmoid(z) * beta,
              .slopes = {(slope * by_chosen - 1) / tokens.chosen,
                         slope.neg() * by_rejected / tokens.rejected},
              .rewards = times(mean),
              .logps = mean};
    }
  }
  DSTRAIN_CHECK(false, "there are no pairs");
}

/// The values of all pairs, with their sums added to `sums`; fillers have none.
PairValues pair_values(const at::Tensor& x, const Parameter& table, const PairTargets& targets,
                       const PairLoss& loss, const PairSums& sums, const LogitLimit& at_once) {
  const AnswerSums l = log_probabilities(x, table, targets, at_once);
  const AnswerSums tokens = sums_of_sides(targets.weights.abs(), targets.weights, l.chosen.size(0));
  const at::Tensor real = tokens.chosen.gt(0);
  const AnswerSums counts{tokens.chosen.clamp_min(1), tokens.rejected.clamp_min(1)};
  PairValues values = values_of(loss, l, counts, targets.references);
  const auto sum = [&](const at::Tensor& each) {
    return at::where(real, each, at::zeros_like(each)).sum();
  };
  sums.totals.select(0, 0).add_(sum(values.loss));
  sums.totals.select(0, 1).add_(
      real.logical_and(values.rewards.chosen.gt(values.rewards.rejected)).sum());
  sums.totals.select(0, 3).add_(real.sum());
  sums.figures.add_(at::stack({sum(values.rewards.chosen), sum(values.rewards.rejected),
                               sum(values.logps.chosen), sum(values.logps.rejected)}));
  values.loss = sum(values.loss).to(at::kFloat);
  return values;
}

/// The weight of each row's cross entropy, whose gradient is that of the pairs' losses.
at::Tensor row_weights(const PairTargets& targets, const AnswerSums& slopes) {
  const at::Tensor side = targets.weights.view({slopes.chosen.size(0), -1});
  const auto of = [](const at::Tensor& slope) { return slope.neg().to(at::kFloat).unsqueeze(1); };
  return at::where(side.gt(0), of(slopes.chosen),
                   at::where(side.lt(0), of(slopes.rejected), at::zeros_like(side)))
      .flatten();
}

struct LinearPairLoss : torch::autograd::Function<LinearPairLoss> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* table,
                            const PairTargets& targets, const PairLoss& loss, const PairSums& sums,
                            LogitRows at_once) {
    context->save_for_backward({dense(input), targets.labels, targets.weights, targets.references});
    // Changed in between by other micro-batches.
    context->saved_data["totals"] = sums.totals;
    context->saved_data["figures"] = sums.figures;
    context->saved_data["many"] = at_once == LogitRows::many;
    context->saved_data["kind"] = static_cast<std::int64_t>(loss.kind);
    context->saved_data["beta"] = loss.beta;
    context->saved_data["gamma"] = loss.gamma;
    context->saved_data["smoothing"] = loss.smoothing;
    context->saved_data["softcap"] = targets.softcap;
    keep(context, "table", table);
    return at::zeros({}, input.options().dtype(at::kFloat));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto number = [&](const char* name) { return context->saved_data.at(name).toDouble(); };
    const at::Tensor& x = saved[0];
    const PairTargets targets{saved[1], saved[2], saved[3], number("softcap")};
    const PairLoss loss{.kind = static_cast<Kind>(context->saved_data.at("kind").toInt()),
                        .beta = number("beta"),
                        .gamma = number("gamma"),
                        .smoothing = number("smoothing")};
    const PairSums sums{.totals = context->saved_data.at("totals").toTensor(),
                        .figures = context->saved_data.at("figures").toTensor()};
    Parameter& table = kept(context, "table");
    const LogitLimit& at_once =
        limit_of(context->saved_data.at("many").toBool() ? LogitRows::many : LogitRows::few);
    const PairValues values = pair_values(x, table, targets, loss, sums, at_once);
    const at::Tensor dx = context->needs_input_grad(0) ? at::empty_like(x) : at::Tensor();
    (void)for_each_chunk_backward(
        x, table, {targets.labels, row_weights(targets, values.slopes), targets.softcap},
        dense(grads[0]), at_once, dx);
    return {dx, {}, {}, {}, {}, {}, {}};
  }
};

void check(const at::Tensor& x, const Parameter& table, const PairTargets& targets) {
  const at::Tensor& value = value_of(table, x);
  const at::Tensor& references = targets.references;
  DSTRAIN_CHECK(x.dim() == 2 && value.dim() == 2 && value.size(1) == x.size(1) &&
                    value.size(0) > 0 && is_vector(targets.labels, x.size(0), at::kLong, x) &&
                    is_vector(targets.weights, x.size(0), at::kFloat, x) && references.dim() == 2 &&
                    references.size(1) == 2 && references.size(0) > 0 &&
                    x.size(0) % references.size(0) == 0,
                fmt::format("pairs: x {}, table {}, labels {} int64, weights {} fp32, references "
                            "{} fp32",
                            shape_of(x), shape_of(value), shape_of(targets.labels),
                            shape_of(targets.weights), shape_of(references)));
}

}  // namespace

at::Tensor linear_pair_loss(const at::Tensor& x_MD, Parameter& table, const PairTargets& targets,
                            const PairLoss& loss, const PairSums& sums, LogitRows at_once) {
  check(x_MD, table, targets);
  DSTRAIN_CHECK(is_vector(sums.totals, 4, at::kFloat, x_MD) &&
                    is_vector(sums.figures, kPairFigures, at::kFloat, x_MD),
                "pairs: wrong sums");
  if (c10::GradMode::is_enabled() && (x_MD.requires_grad() || table.trainable))
    return LinearPairLoss::apply(x_MD, anchor_for(x_MD, table.trainable), &table, targets, loss,
                                 sums, at_once);
  return pair_values(dense(x_MD), table, targets, loss, sums, kEvaluatedLogits).loss;
}

at::Tensor answer_log_probabilities(const at::Tensor& x_MD, const Parameter& table,
                                    const PairTargets& targets, LogitRows at_once) {
  check(x_MD, table, targets);
  const auto [chosen, rejected] = log_probabilities(dense(x_MD), table, targets, limit_of(at_once));
  return at::stack({chosen, rejected}, 1).to(at::kFloat);
}

}  // namespace dstrain::ops
