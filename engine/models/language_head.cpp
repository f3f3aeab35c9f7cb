#include "engine/models/language_head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/kernels/ops.h"
#include "engine/nn/last_tokens.h"
#include "engine/nn/layer_cost.h"
#include "engine/program/cost.h"

namespace dstrain {

LanguageHead::LanguageHead(Norm norm, const LanguageShape& shape, Parameter* tied,
                           const InitialWeights& init)
    : name_("lm_head"), shape_(shape), norm_(std::move(norm)) {
  own_table_.hold({{kLanguageHeadWeight, {shape.vocab_size, shape.width}}});
  own_table_.init = init.kind;
  own_table_.init_std = init.std;
  table_ = tied != nullptr ? tied : &own_table_;
}

std::vector<Parameter*> LanguageHead::parameters() {
  std::vector<Parameter*> list = {table_};
  std::visit([&](auto& norm) { norm.add_parameters(list); }, norm_);
  return list;
}

at::Tensor LanguageHead::normalize(const Tensors& input) {
  DSTRAIN_CHECK(input.size() == 2, name_ + ": wrong number of inputs");
  return std::visit([&](auto& norm) { return norm.forward(input[0], input[1]).second; }, norm_);
}

at::Tensor LanguageHead::logits(const Tensors& input) {
  return ops::linear(normalize(input), *table_, nullptr);
}

void LanguageHead::choose_next(const Tensors& input, const BlockContext& context) {
  const at::Tensor& next_tokens = context.next_tokens;
  const std::int64_t batch = next_tokens.size(0), tokens = input[0].size(0) / batch;
  const LastTokens last = last_tokens(next_tokens, tokens, shape_.part);
  const at::Tensor rows = at::arange(batch, next_tokens.options()) * tokens + last.places;
  Tensors chosen;
  for (const at::Tensor& tensor : input) chosen.push_back(tensor.index_select(0, rows));
  next_tokens.copy_(
      agreed(at::argmax(logits(chosen), 1), last, context.peers.along(CommAxis::sequence)));
}

Tensors LanguageHead::forward(const Tensors& input, const Batch& batch,
                              const BlockContext& context) {
  if (context.next_tokens.defined()) {
    choose_next(input, context);
    return {at::zeros({}, input.at(0).options().dtype(at::kFloat))};
  }
  return {ops::linear_cross_entropy(normalize(input), *table_, batch.labels, batch.weights,
                                    context.totals.narrow(0, 0, kBalanceTotal))};
}

BlockCost LanguageHead::cost(const BatchShape& shape) const {
  const std::int64_t rows = shape.micro_batch * shape_.sequence;
  const Bytes stream = rows * shape_.width * shape.compute_bytes;  // one [M, D]
  BlockCost cost;
  cost.name = name_;
  LayerCost logit_cost{
      .name = name_,
      .forward_flops = 2.0 * static_cast<double>(rows) * static_cast<double>(own_table_.numel())};
  if (table_ == &own_table_) count(own_table_, logit_cost);
  // Sum and output of the norm; the logits are made again in backward, a few rows at a time.
  cost.take({std::visit([&](const auto& norm) { return norm.cost(rows, 2 * stream); }, norm_),
             std::move(logit_cost)});
  cost.boundary = {{{}, kFloatBytes}};
  // Loss and hit of each row. Backward, the gradient of the norm's output with the logits, or then
  // with that of both inputs.
  const Bytes per_row = 2 * rows * kFloatBytes;
  const Bytes logits =
      ops::linear_cross_entropy_bytes(rows, shape_.vocab_size, shape.compute_bytes);
  cost.backward_workspace = stream + std::max(logits + per_row, stream);
  return cost;
}

}  // namespace dstrain
