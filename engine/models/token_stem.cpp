#include "engine/models/token_stem.h"

#include <utility>

#include "engine/nn/parameter_order.h"

namespace dstrain {

TokenStem::TokenStem(const std::string& prefix, const LanguageShape& shape,
                     const InitialWeights& init, double scale, std::optional<LayerNorm> norm,
                     std::optional<LearntPositions> positions)
    : LayeredBlock(Works::on_tokens),
      name_(prefix),
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

std::vector<Features> TokenStem::run(LayerPass& pass, const std::vector<Features>& input) {
  Features rows = embedding_.run(pass, input.at(0));
  if (positions_) rows = positions_->run(pass, std::move(rows));
  return {norm_ ? norm_->run(pass, {rows}) : rows};
}

Blocks language_blocks(std::unique_ptr<TokenStem> stem, std::int64_t layers,
                       const std::function<std::unique_ptr<Block>(std::int64_t index)>& layer,
                       LanguageHead::Norm norm, const LanguageShape& shape, bool tied,
                       const InitialWeights& init) {
  Parameter& table = stem->table();
  Blocks blocks;
  blocks.push_back(std::move(stem));
  for (std::int64_t i = 0; i < layers; ++i) blocks.push_back(layer(i));
  blocks.push_back(
      std::make_unique<LanguageHead>(std::move(norm), shape, tied ? &table : nullptr, init));
  return blocks;
}

}  // namespace dstrain
