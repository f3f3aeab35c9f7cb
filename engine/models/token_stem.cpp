#include "engine/models/token_stem.h"

#include <utility>

#include "engine/nn/parameter_order.h"

namespace dstrain {

TokenStem::TokenStem(const std::string& prefix, const LanguageShape& shape,
                     const InitialWeights& init, double scale, std::optional<LayerNorm> norm)
    : name_(prefix),
      shape_(shape),
      embedding_(prefix, shape.vocab_size, shape.width, init, shape.tensor, scale),
      norm_(std::move(norm)) {}

std::vector<Parameter*> TokenStem::parameters() {
  std::vector<Parameter*> list;
  embedding_.add_parameters(list);
  if (norm_) norm_->add_parameters(list);
  return matrices_first(std::move(list));
}

Tensors TokenStem::forward(const Tensors&, const Batch& batch, const BlockContext& context) {
  at::Tensor rows = embedding_.forward(batch.tokens, {.peers = context.peers});
  if (norm_) rows = norm_->forward(rows, std::nullopt).second;
  return {rows};
}

BlockCost TokenStem::cost(const BatchShape& shape) {
  const std::int64_t rows = shape.micro_batch * shape_.sequence / shape_.tensor.count;
  BlockCost cost;
  cost.name = name_;
  cost.boundary = {{{rows, shape_.width}, shape.compute_bytes}};
  const Bytes handed_on = cost.boundary_bytes();
  std::vector<LayerCost> layers = {embedding_.cost()};
  // Backward, the gradient of what it returned, and of the norm's input, which it keeps.
  if (norm_) layers.push_back(norm_->cost(rows, handed_on));
  cost.backward_workspace = static_cast<Bytes>(layers.size()) * handed_on;
  cost.take(std::move(layers));
  embedding_.add_exchanges(cost.exchanges, handed_on * shape_.tensor.count, shape.compute_bytes);
  return cost;
}

}  // namespace dstrain
