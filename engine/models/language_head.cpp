#include "engine/models/language_head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/nn/last_tokens.h"
#include "engine/nn/layer_cost.h"
#include "engine/nn/token_embedding.h"
#include "engine/program/cost.h"

namespace dstrain {

LanguageShape language_shape(const ModelSizes& sizes, const ModelInputs& inputs, double softcap) {
  return {.width = sizes.width,
          .vocab_size = sizes.vocab_size,
          .sequence = inputs.own_tokens(),
          .part = inputs.splits.sequence,
          .tensor = inputs.splits.tensor,
          .joined = inputs.tile_rows > 0,
          .pairs = inputs.pairs,
          .softcap = softcap};
}

Model language_model(Blocks blocks, const ModelSizes& sizes, const ModelInputs& inputs,
                     std::string config_json, std::vector<std::string> notes) {
  return {.blocks = std::move(blocks),
          .config_json = std::move(config_json),
          .vocab_size = static_cast<int>(sizes.vocab_size),
          .sequence = inputs.sequence,
          .experts_per_token = static_cast<int>(sizes.experts_per_token),
          .notes = std::move(notes),
          .tile_rows = inputs.tile_rows,
          .tokens = inputs.own_tokens()};
}

LanguageHead::LanguageHead(Norm norm, const LanguageShape& shape, Parameter* tied,
                           const InitialWeights& init)
    : name_("lm_head"), shape_(shape), norm_(std::move(norm)) {
  own_table_ =
      token_table(kLanguageHeadWeight, {shape.vocab_size, shape.width}, init, shape.tensor);
  table_ = tied != nullptr ? tied : &own_table_;
}

std::vector<Parameter*> LanguageHead::parameters() {
  std::vector<Parameter*> list = {table_};
  std::visit([&](auto& norm) { norm.add_parameters(list); }, norm_);
  return list;
}

at::Tensor LanguageHead::normalize(const Tensors& input) {
  DSTRAIN_CHECK(input.size() == (shape_.joined ? 1u : 2u), name_ + ": wrong number of inputs");
  const auto delta = shape_.joined ? std::nullopt : std::optional<at::Tensor>(input[1]);
  return std::visit([&](auto& norm) { return norm.forward(input[0], delta).second; }, norm_);
}

at::Tensor LanguageHead::logits(const Tensors& input) {
  at::Tensor logits = ops::linear(normalize(input), *table_, nullptr);
  const double cap = shape_.softcap;
  return cap > 0 ? at::tanh(logits / cap) * cap : logits;
}

void LanguageHead::choose_next(const Tensors& input, const BlockContext& context) {
  const at::Tensor& next_tokens = context.next_tokens;
  Communicator* ranks = context.peers.along(CommAxis::tensor);
  const std::int64_t batch = next_tokens.size(0),
                     tokens = input[0].size(0) * shape_.tensor.count / batch;
  const LastTokens last = last_tokens(next_tokens, tokens, shape_.part);
  const at::Tensor rows = at::arange(batch, next_tokens.options()) * tokens + last.places;
  Tensors chosen;
  for (const at::Tensor& tensor : input)
    chosen.push_back(ranks == nullptr ? tensor.index_select(0, rows)
                                      : ops::collect_rows(tensor, rows, ranks));
  const at::Tensor logits = this->logits(chosen);
  const at::Tensor found =
      table_->cut == Cut::tensor ? ops::most_likely_class(logits, *ranks) : at::argmax(logits, 1);
  next_tokens.copy_(agreed(found, last, context.peers.along(CommAxis::sequence)));
}

at::Tensor LanguageHead::pair_loss(const at::Tensor& x_MD, const Batch& batch,
                                   const BlockContext& context) {
  DSTRAIN_CHECK(table_->cut == Cut::none && shape_.part.whole() && shape_.tensor.whole(),
                "pairs of answers that ranks share");
  const ops::PairTargets targets{batch.labels, batch.weights, batch.references, shape_.softcap};
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

at::Tensor LanguageHead::loss(const at::Tensor& x_mD, const Batch& batch,
                              const BlockContext& context) {
  if (context.pair_loss.kind != ops::PairLoss::Kind::none) return pair_loss(x_mD, batch, context);
  const at::Tensor totals = context.totals.narrow(0, 0, kBalanceTotal);
  if (table_->cut == Cut::tensor)
    return ops::cut_cross_entropy(x_mD, *table_, batch.labels, batch.weights, totals,
                                  *context.peers.along(CommAxis::tensor));
  const std::int64_t rows = x_mD.size(0), first = shape_.tensor.index * rows;
  return ops::linear_cross_entropy(
      x_mD, *table_, batch.labels.narrow(0, first, rows), batch.weights.narrow(0, first, rows),
      totals, context.keep_hidden ? ops::LogitRows::many : ops::LogitRows::few, shape_.softcap);
}

Tensors LanguageHead::forward(const Tensors& input, const Batch& batch,
                              const BlockContext& context) {
  if (context.next_tokens.defined()) {
    choose_next(input, context);
    return {at::zeros({}, input.at(0).options().dtype(at::kFloat))};
  }
  return {loss(normalize(input), batch, context)};
}

/// Each chunk of the loss exchanges its rows, what the ranks tell of each, and the gradient's sum.
void LanguageHead::add_loss_exchanges(BlockCost& cost, std::int64_t own_rows,
                                      int compute_bytes) const {
  const int ranks = shape_.tensor.count;
  const auto add = [&](CommOp op, Bytes bytes, int width, ExchangePass pass, Flops beside = 0) {
    cost.exchanges.push_back({.op = op,
                              .axis = CommAxis::tensor,
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

BlockCost LanguageHead::cost(const BatchShape& shape) {
  const std::int64_t all_rows = shape.micro_batch * shape_.sequence,
                     own_rows = all_rows / shape_.tensor.count;
  const bool cut = own_table_.cut == Cut::tensor;
  const std::int64_t rows = cut ? all_rows : own_rows;  // whose logits this rank makes
  const Bytes stream = own_rows * shape_.width * shape.compute_bytes;  // one [m, D]
  BlockCost cost;
  cost.name = name_;
  LayerCost logit_cost{
      .name = name_,
      .forward_flops = 2.0 * static_cast<double>(rows) * static_cast<double>(own_table_.numel())};
  if (table_ == &own_table_) count(own_table_, logit_cost);
  // Once for the log-probabilities of answers, and once for the gradients.
  if (shape_.pairs) logit_cost.again_flops = logit_cost.forward_flops;
  // Output and sum of the norm, unless that is the input; the logits are made again in backward, a
  // few rows at a time.
  const Bytes kept = (shape_.joined ? 1 : 2) * stream;
  cost.take({std::visit([&](const auto& norm) { return norm.cost(own_rows, kept); }, norm_),
             std::move(logit_cost)});
  cost.boundary = {{{}, kFloatBytes}};
  if (cut) add_loss_exchanges(cost, own_rows, shape.compute_bytes);
  if (shape_.pairs) cost.step_sums = ops::kPairFigures;
  // Loss and hit of each row, and of pairs its weight, absolute and in the gradient, and its loss
  // by answer. Backward, the gradient of the norm's output with the logits, or then with that of
  // both inputs.
  const Bytes per_row = (shape_.pairs ? 6 : 2) * rows * kFloatBytes;
  const auto workspace = [&](ops::LogitRows at_once) {
    return stream + std::max(logit_bytes(own_rows, shape.compute_bytes, at_once) + per_row, stream);
  };
  cost.backward_workspace = workspace(ops::LogitRows::few);
  cost.hidden_workspace = workspace(ops::LogitRows::many) - cost.backward_workspace;
  return cost;
}

/// With what is gathered and summed of a chunk's rows.
Bytes LanguageHead::logit_bytes(std::int64_t own_rows, int compute_bytes,
                                ops::LogitRows at_once) const {
  if (own_table_.cut == Cut::none)
    return ops::linear_cross_entropy_bytes(own_rows, shape_.vocab_size, compute_bytes, at_once,
                                           shape_.softcap > 0);
  const int ranks = shape_.tensor.count;
  const auto chunks =
      ops::cut_cross_entropy_chunks(own_rows, ranks, own_table_.shape[0], compute_bytes);
  return ranks * chunks.front() * (own_table_.shape[0] + 2 * shape_.width) * compute_bytes;
}

}  // namespace dstrain
