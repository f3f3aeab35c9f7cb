#include "engine/models/token_stem.h"

#include <utility>

#include "engine/nn/parameter_order.h"

namespace dstrain {

TokenStem::TokenStem(const std::string& prefix, const LanguageShape& shape,
                     const InitialWeights& init, double scale, std::optional<LayerNorm> norm)
    : LayeredBlock(Works::on_tokens),
      name_(prefix),
      shape_(shape),
      embedding_(prefix, shape.vocab_size, shape.width, init, shape.tensor, scale),
      norm_(std::move(norm)) {}

std::vector<Parameter*> TokenStem::parameters() {
  std::vector<Parameter*> list;
  embedding_.add_parameters(list);
  if (norm_) norm_->add_parameters(list);
  return matrices_first(std::move(list));
}

std::vector<Features> TokenStem::run(LayerPass& pass, const std::vector<Features>& input) {
  const Features rows = embedding_.run(pass, input.at(0));
  return {norm_ ? norm_->run(pass, {rows}) : rows};
}

}  // namespace dstrain
