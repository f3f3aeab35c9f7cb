#include "engine/nn/logits_mean.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>

#include <cmath>

namespace dstrain {

at::Tensor LogitsMean::forward(const at::Tensor& logits_NBC) const {
  if (!of_probabilities) {
    at::Tensor sum = logits_NBC[0].to(at::kFloat).mul(weights[0]);
    for (std::size_t i = 1; i < weights.size(); ++i)
      sum = sum.add(logits_NBC[static_cast<std::int64_t>(i)].to(at::kFloat), weights[i]);
    return sum;
  }
  std::vector<at::Tensor> terms;
  for (std::size_t i = 0; i < weights.size(); ++i)
    terms.push_back(at::log_softmax(logits_NBC[static_cast<std::int64_t>(i)], -1, at::kFloat)
                        .add(std::log(weights[i])));
  return at::logsumexp(at::stack(terms), {0});
}

Features LogitsMean::run(LayerPass& pass, const Features& logits_NBC) const {
  if (pass.costs == nullptr) return {.tensor = forward(logits_NBC.tensor)};
  const std::vector<std::int64_t>& sizes = logits_NBC.size.shape;
  Features output{.size = {{sizes.at(1), sizes.at(2)}, kFloatBytes}};
  const auto models = static_cast<Bytes>(weights.size());
  const Bytes mean = output.bytes(), logits = logits_NBC.bytes();
  // Probabilities: their logarithms, and those with the weights.
  pass.costs->add({.name = "average", .saved_bytes = of_probabilities ? 2 * models * mean : 0},
                  {{.bytes = logits + models * mean + mean}},
                  {{.bytes = logits + 2 * models * mean + mean}});
  // The gradients of other models' logits are the block's input's.
  pass.costs->hold_also(logits + models * mean, logits / models + models * mean);
  return output;
}

Features join_logits(LayerPass& pass, const Features* before, const Features& logits) {
  if (pass.costs != nullptr) {
    const std::int64_t others = before == nullptr ? 0 : before->size.shape.front();
    return logits.sized({others + 1, logits.rows(), logits.columns()});
  }
  const at::Tensor own = logits.tensor.unsqueeze(0);
  return {.tensor = before == nullptr ? own : at::cat({before->tensor, own})};
}

}  // namespace dstrain
