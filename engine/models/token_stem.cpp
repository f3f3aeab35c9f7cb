#include "engine/models/token_stem.h"

#include <ATen/ops/arange.h>

#include <utility>

#include "engine/nn/parameter_order.h"

namespace dstrain {

TokenStem::TokenStem(const std::string& prefix, const LanguageShape& shape,
                     const InitialWeights& init, double scale, std::optional<LayerNorm> norm,
                     std::optional<TokenEmbedding> positions)
    : name_(prefix),
      shape_(shape),
      embedding_(prefix, shape.vocab_size, shape.width, init, shape.tensor, scale),
      positions_(std::move(positions)),
      norm_(std::move(norm)) {}

std::vector<Parameter*> TokenStem::parameters() {
  std::vector<Parameter*> list;
  embedding_.add_parameters(list);
  if (positions_) positions_->add_parameters(list);
  if (norm_) norm_->add_parameters(list);
  return matrices_first(std::move(list));
}

at::Tensor TokenStem::places(const Batch& batch) {
  if (batch.own.positions.defined()) return batch.own.positions.to(at::kLong);
  if (batch.sequences.positions.defined()) return batch.sequences.positions.to(at::kLong);
  return at::arange(batch.tokens.size(1), batch.tokens.options()).expand(batch.tokens.sizes());
}

Tensors TokenStem::forward(const Tensors&, const Batch& batch, const BlockContext& context) {
  at::Tensor rows = embedding_.forward(batch.tokens, {.peers = context.peers});
  if (positions_) {
    const at::Tensor all = places(batch).flatten();
    const std::int64_t own = all.numel() / shape_.tensor.count;
    rows.add_(positions_->forward(all.narrow(0, shape_.tensor.index * own, own)));
  }
  if (norm_) rows = norm_->forward(rows, std::nullopt).second;
  return {rows};
}

BlockCost TokenStem::cost(const BatchShape& shape) const {
  const std::int64_t rows = shape.micro_batch * shape_.sequence / shape_.tensor.count;
  BlockCost cost;
  cost.name = name_;
  cost.boundary = {{{rows, shape_.width}, shape.compute_bytes}};
  const Bytes handed_on = cost.boundary_bytes();
  std::vector<LayerCost> layers = {embedding_.cost()};
  if (positions_) {
    LayerCost positions = positions_->cost();
    // The places of all ranks' rows, which no batch has as int64.
    if (positions.trained > 0)
      positions.saved_bytes = rows * shape_.tensor.count * static_cast<Bytes>(sizeof(std::int64_t));
    layers.push_back(std::move(positions));
    cost.forward_workspace = handed_on;
  }
  // Backward, the gradient of what it returned, and of the norm's input, which it keeps.
  cost.backward_workspace = (norm_ ? 2 : 1) * handed_on;
  if (norm_) layers.push_back(norm_->cost(rows, handed_on));
  cost.take(std::move(layers));
  embedding_.add_exchanges(cost.exchanges, handed_on * shape_.tensor.count, shape.compute_bytes);
  return cost;
}

}  // namespace dstrain
