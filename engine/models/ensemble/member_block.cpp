#include "engine/models/ensemble/member_block.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/tensor/ops_graph.h"
#include "engine/models/image/class_loss.h"
#include "engine/nn/block_state.h"

namespace dstrain {

std::string MemberPlace::prefix() const { return fmt::format("members.{}.", member); }

BoundaryTensor MemberPlace::logits(const BatchShape& shape, std::size_t members) const {
  return {{static_cast<std::int64_t>(members), shape.micro_batch, classes}, shape.compute_bytes};
}

MemberBlock::MemberBlock(std::unique_ptr<ImageBlock> block, const MemberPlace& place, bool stem)
    : block_(std::move(block)), place_(place), stem_(stem) {
  block_->put_under(place_.prefix());
}

Tensors MemberBlock::forward(const Tensors& input, const Batch& batch,
                             const BlockContext& context) {
  const std::size_t logits = place_.member > 0 ? 1 : 0;
  DSTRAIN_CHECK(input.size() == (stem_ ? 0u : 1u) + logits, name() + ": wrong number of inputs");
  if (stem_ && logits > 0) {
    Batch own = batch;
    own.images = ops::in_graph_of(batch.images, input.back());
    return {block_->forward({}, own, context).front(), input.back().clone()};
  }
  Tensors output = block_->forward(stem_ ? Tensors{} : Tensors{input.front()}, batch, context);
  // An own tensor: the input goes when its block is done.
  if (logits > 0) output.push_back(input.back().clone());
  return output;
}

BlockCost MemberBlock::cost(const BatchShape& shape) const {
  BlockCost cost = block_->cost(shape);
  if (place_.member == 0) return cost;
  const BoundaryTensor logits = place_.logits(shape, place_.member);
  cost.boundary.push_back(logits);
  cost.forward_kernels.push_back({.bytes = 2 * logits.bytes()});
  cost.backward_kernels.push_back({.bytes = 2 * logits.bytes()});
  cost.backward_workspace += logits.bytes();
  return cost;
}

at::Tensor EnsembleMean::of(const at::Tensor& logits_NBC) const {
  if (average == EnsembleAverage::logits) {
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

void EnsembleMean::add_costs(ImageCosts& costs, std::int64_t samples, std::int64_t classes) const {
  const auto members = static_cast<Bytes>(weights.size());
  const Bytes mean = samples * classes * kFloatBytes,
              logits = members * samples * classes * costs.compute_bytes();
  // Probabilities: their logarithms, and those with the weights.
  costs.add({.name = "average",
             .saved_bytes = average == EnsembleAverage::logits ? 0 : 2 * members * mean},
            {{.bytes = logits + members * mean + mean}},
            {{.bytes = logits + 2 * members * mean + mean}});
  costs.hold_also(logits + members * mean);
}

MemberHead::MemberHead(std::unique_ptr<ImageHead> head, const MemberPlace& place, EnsembleMean mean)
    : head_(std::move(head)), place_(place), mean_(std::move(mean)) {
  head_->put_under(place_.prefix());
}

at::Tensor MemberHead::logits(const Tensors& input, const Call& call) {
  DSTRAIN_CHECK(input.size() == (place_.member > 0 ? 2u : 1u), name() + ": wrong number of inputs");
  const at::Tensor own = head_->logits({input.front()}, call).unsqueeze(0);
  return place_.member > 0 ? at::cat({input.back(), own}) : own;
}

Tensors MemberHead::forward(const Tensors& input, const Batch& batch, const BlockContext& context) {
  const at::Tensor all = logits(input, Call::of(batch, context));
  if (!last()) return {all};
  return {class_loss(mean_.of(all), batch, context)};
}

BlockCost MemberHead::cost(const BatchShape& shape) const {
  ImageCosts costs = head_->logits_costs(shape);
  if (!last()) {
    BlockCost cost = costs.finish({place_.logits(shape, place_.member + 1)});
    cost.backward_workspace += place_.logits(shape, place_.member).bytes();
    return cost;
  }
  mean_.add_costs(costs, shape.micro_batch, place_.classes);
  costs.add(class_loss_cost(shape.micro_batch, place_.classes, kFloatBytes));
  return costs.finish({{{}, kFloatBytes}});
}

}  // namespace dstrain
