#include "engine/nn/token_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/nn/layer_cost.h"

namespace dstrain {

TokenLoss::TokenLoss(const std::string& name, const TableShape& shape, Parameter* tied,
                     const InitialWeights& init, const TokenLossOptions& options)
    : name_(name.substr(0, name.rfind('.'))),
      shape_(shape),
      options_(options),
      own_table_(token_table(name, shape, init, options.tensor)),
      table_(tied != nullptr ? tied : &own_table_) {}

at::Tensor TokenLoss::logits(const at::Tensor& x_MD) {
  at::Tensor logits = ops::linear(x_MD, *table_, nullptr);
  const double cap = options_.softcap;
  return cap > 0 ? at::tanh(logits / cap) * cap : logits;
}

at::Tensor TokenLoss::most_likely(const at::Tensor& x_BD, Communicator* ranks) {
  const at::Tensor logits = this->logits(x_BD);
  return table_->cut == Cut::tensor ? ops::most_likely_class(logits, *ranks)
                                    : at::argmax(logits, 1);
}

at::Tensor TokenLoss::pair_loss(const at::Tensor& x_MD, const Batch& batch,
                                const BlockContext& context) {
  DSTRAIN_CHECK(table_->cut == Cut::none && options_.part.whole() && options_.tensor.whole(),
                "pairs of answers that ranks share");
  const ops::PairTargets targets{batch.labels, batch.weights, batch.references, options_.softcap};
  const auto at_once = context.keep_hidden ? ops::LogitRows::many : ops::LogitRows::few;
  if (context.answer_logps.defined()) {
    context.answer_logps.copy_(ops::answer_log_probabilities(x_MD, *table_, targets, at_once));
    return at::zeros({}, x_MD.options().dtype(at::kFloat));
  }
  return ops::linear_pair_loss(
      x_MD, *table_, targets, context.pair_loss,
      {.totals = context.totals.narrow(0, 0, kBalanceTotal), .figures = context.pair_figures},
      at_once);
}

at::Tensor TokenLoss::loss(const at::Tensor& x_mD, const Batch& batch,
                           const BlockContext& context) {
  if (context.pair_loss.kind != ops::PairLoss::Kind::none) return pair_loss(x_mD, batch, context);
  const at::Tensor totals = context.totals.narrow(0, 0, kBalanceTotal);
  if (table_->cut == Cut::tensor)
    return ops::cut_cross_entropy(x_mD, *table_, batch.labels, batch.weights, totals,
                                  *context.peers.along(Axis::tensor));
  const std::int64_t rows = x_mD.size(0), first = options_.tensor.index * rows;
  return ops::linear_cross_entropy(
      x_mD, *table_, batch.labels.narrow(0, first, rows), batch.weights.narrow(0, first, rows),
      totals, context.keep_hidden ? ops::LogitRows::many : ops::LogitRows::few, options_.softcap);
}

Features TokenLoss::run(LayerPass& pass, const Features& x_mD) {
  if (pass.costs == nullptr) return {.tensor = loss(x_mD.tensor, *pass.batch, *pass.context)};
  add_cost(*pass.costs, x_mD);
  return {.size = {{}, kFloatBytes}};
}

void TokenLoss::add_cost(LayerCosts& costs, const Features& x_mD) const {
  const std::int64_t own_rows = x_mD.rows(),
                     rows = cut() ? own_rows * options_.tensor.count : own_rows;  // of its logits
  LayerCost layer{
      .name = name_,
      .forward_flops = 2.0 * static_cast<double>(rows) * static_cast<double>(own_table_.numel()),
      .saved_bytes = x_mD.counted ? 0 : x_mD.bytes()};
  if (table_ == &own_table_) count(own_table_, layer);
  // Once for the log-probabilities of answers, and once for the gradients.
  if (options_.pairs) layer.again_flops = layer.forward_flops;
  costs.add(std::move(layer));
  if (cut()) add_exchanges(costs, own_rows);
  if (options_.pairs) costs.add_step_sums(ops::kPairFigures);
  // The logits are made again in backward, a few rows at a time. Beside them loss and hit of each
  // row, and of pairs its weight, absolute and in the gradient, and its loss by answer; or then the
  // gradient of x.
  const Bytes per_row = (options_.pairs ? 6 : 2) * rows * kFloatBytes;
  const auto workspace = [&](ops::LogitRows at_once) {
    return std::max(logit_bytes(own_rows, costs.compute_bytes(), at_once) + per_row, x_mD.bytes());
  };
  costs.hold(0, workspace(ops::LogitRows::few), workspace(ops::LogitRows::many));
}

/// Each chunk of the loss exchanges its rows, what the ranks tell of each, and the gradient's sum.
void TokenLoss::add_exchanges(LayerCosts& costs, std::int64_t own_rows) const {
  const int ranks = options_.tensor.count, compute_bytes = costs.compute_bytes();
  const auto add = [&](CommOp op, Bytes bytes, int width, ExchangePass pass, Flops beside = 0) {
    costs.exchanges().push_back({.op = op,
                                 .axis = Axis::tensor,
                                 .bytes = bytes,
                                 .width = width,
                                 .pass = pass,
                                 .beside_flops = beside});
  };
  for (const std::int64_t own :
       ops::cut_cross_entropy_chunks(own_rows, ranks, own_table_.shape[0], compute_bytes)) {
    const std::int64_t rows = own * ranks;
    const Flops logits = 2.0 * static_cast<double>(own * own_table_.numel());  // of own rows
    for (const ExchangePass pass : {ExchangePass::backward, ExchangePass::evaluate}) {
      add(CommOp::all_gather, rows * shape_.width * compute_bytes, compute_bytes, pass, logits);
      add(CommOp::all_gather, ranks * rows * ops::kCutLossColumns * kFloatBytes, kFloatBytes, pass);
    }
    add(CommOp::reduce_scatter, rows * shape_.width * compute_bytes, compute_bytes,
        ExchangePass::backward, own_table_.trainable ? logits * ranks : 0);
  }
}

/// With what is gathered and summed of a chunk's rows.
Bytes TokenLoss::logit_bytes(std::int64_t own_rows, int compute_bytes,
                             ops::LogitRows at_once) const {
  if (own_table_.cut == Cut::none)
    return ops::linear_cross_entropy_bytes(own_rows, shape_.width, shape_.vocab_size, compute_bytes,
                                           at_once, options_.softcap > 0);
  const int ranks = options_.tensor.count;
  const auto chunks =
      ops::cut_cross_entropy_chunks(own_rows, ranks, own_table_.shape[0], compute_bytes);
  return ranks * chunks.front() * (own_table_.shape[0] + 2 * shape_.width) * compute_bytes;
}

}  // namespace dstrain
