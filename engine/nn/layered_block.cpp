#include "engine/nn/layered_block.h"

#include <utility>

namespace dstrain {
namespace {

struct Counted {
  std::vector<BoundaryTensor> input, output;
};

Counted count(LayeredBlock& block, const BatchShape& shape, LayerCosts& costs) {
  Counted counted{.input = block.input_sizes(shape), .output = {}};
  std::vector<Features> input;
  for (const BoundaryTensor& size : counted.input) input.push_back({.size = size, .counted = true});
  LayerPass pass{.costs = &costs};
  for (Features& features : block.run(pass, input))
    counted.output.push_back(std::move(features.size));
  return counted;
}

}  // namespace

Tensors LayeredBlock::forward(const Tensors& input, const Batch& batch,
                              const BlockContext& context) {
  std::vector<Features> features;
  for (at::Tensor& tensor : input_of(input, batch))
    features.push_back({.tensor = std::move(tensor)});
  LayerPass pass{.call = Call::of(batch, context), .batch = &batch, .context = &context};
  Tensors output;
  for (Features& made : run(pass, features)) output.push_back(std::move(made.tensor));
  return output;
}

BlockCost LayeredBlock::cost(const BatchShape& shape) {
  LayerCosts costs(name(), shape.compute_bytes, works_, shape.limits);
  const Counted counted = count(*this, shape, costs);
  return costs.finish(counted.input, counted.output);
}

std::vector<BoundaryTensor> LayeredBlock::output_sizes(const BatchShape& shape) {
  LayerCosts unused(name(), shape.compute_bytes, works_);
  return count(*this, shape, unused).output;
}

}  // namespace dstrain
