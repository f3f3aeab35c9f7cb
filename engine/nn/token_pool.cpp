#include "engine/nn/token_pool.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "engine/comm/communicator.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/nn/tensor_exchanges.h"

namespace dstrain {

std::vector<Features> first_token(LayerPass& pass, const std::vector<Features>& input,
                                  const PooledTokens& sample) {
  const Features& x = input.front();
  std::vector<Features> tokens;
  if (pass.costs == nullptr) {
    const std::int64_t batch = x.tensor.size(0) * sample.tensor.count / sample.tokens;
    Communicator* ranks = pass.call.tensor();
    const at::Tensor rows =
        ranks == nullptr ? at::Tensor()
                         : at::arange(batch, x.tensor.options().dtype(at::kLong)) * sample.tokens;
    for (const Features& own : input)
      tokens.push_back({.tensor = ranks == nullptr ? ops::first_token(own.tensor, batch)
                                                   : ops::collect_rows(own.tensor, rows, ranks)});
    return tokens;
  }
  LayerCosts& costs = *pass.costs;
  const bool shared = !sample.tensor.whole();
  const std::int64_t batch = x.rows() * sample.tensor.count / sample.tokens;
  for (const Features& own : input) tokens.push_back(x.sized({batch, own.columns()}));
  const Bytes token = tokens.front().bytes(), stream = x.bytes();
  if (shared)
    costs.add({.name = "first token",  // numbers of the rows
               .saved_bytes = batch * static_cast<Bytes>(sizeof(std::int64_t))});
  for (const ExchangePass way : {ExchangePass::forward, ExchangePass::backward}) {
    for (std::size_t term = 0; shared && term < input.size(); ++term)
      costs.exchanges().push_back({.op = CommOp::all_reduce,
                                   .axis = Axis::tensor,
                                   .bytes = token,
                                   .width = costs.compute_bytes(),
                                   .pass = way});
  }
  // The tokens of all inputs; backward, the gradients of these and of what led to them.
  const auto terms = static_cast<Bytes>(input.size());
  costs.hold(terms * token, terms * stream + token);
  return tokens;
}

Features mean_token(LayerPass& pass, const Features& rows, const PooledTokens& sample, bool both) {
  const AxisPart& tensor = sample.tensor;
  if (pass.costs == nullptr) {
    const std::int64_t batch = rows.tensor.size(0) * tensor.count / sample.tokens;
    return {.tensor = ops::mean_token(ops::all_gather_rows(rows.tensor, pass.call.tensor()), batch,
                                      sample.first, both)};
  }
  LayerCosts& costs = *pass.costs;
  const std::int64_t batch = rows.rows() * tensor.count / sample.tokens;
  const Bytes stream = rows.bytes(), whole = stream * tensor.count,
              gathered = tensor.whole() ? 0 : whole,
              pooled = batch * 2 * rows.columns() * costs.compute_bytes();
  if (!tensor.whole()) add_all_gather_rows(costs.exchanges(), whole, costs.compute_bytes());
  // The normed rows or the sum, of all ranks where there are more, until their mean is taken;
  // backward, the gradient of all of them.
  costs.hold(stream + gathered + 2 * pooled, whole + gathered + 2 * pooled);
  return rows.sized({batch, (both ? 2 : 1) * rows.columns()});
}

Features sum_of(LayerPass& pass, const std::vector<Features>& input) {
  const Features& x = input.front();
  if (input.size() == 1) return x;
  if (pass.costs != nullptr) return x.sized(x.size.shape);
  return {.tensor = x.tensor + input[1].tensor};
}

}  // namespace dstrain
