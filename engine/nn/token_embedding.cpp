#include "engine/nn/token_embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>

#include <utility>

#include "engine/comm/communicator.h"
#include "engine/kernels/taken_sizes.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/nn/layer_cost.h"
#include "engine/nn/tensor_exchanges.h"

namespace dstrain {

Parameter token_table(const std::string& name, const TableShape& shape, const InitialWeights& init,
                      const AxisPart& tensor) {
  Parameter table;
  const bool cut = !tensor.whole() && shape.vocab_size % tensor.count == 0;
  table.hold(
      {{name,
        {shape.vocab_size, shape.width},
        cut ? even_part(shape.vocab_size, tensor.count, tensor.index) : Range{0, shape.vocab_size},
        {0, shape.width}}});
  table.init = init.kind;
  table.init_std = init.std;
  table.cut = cut ? Cut::tensor : Cut::none;
  return table;
}

TokenEmbedding::TokenEmbedding(const std::string& prefix, std::int64_t vocab_size,
                               std::int64_t width, const InitialWeights& init,
                               const AxisPart& tensor, double scale)
    : table_(token_table(prefix + ".weight", {vocab_size, width}, init, tensor)),
      tensor_(tensor),
      scale_(scale) {}

at::Tensor TokenEmbedding::forward(const at::Tensor& tokens_BT, const Call& call) {
  const at::Tensor rows = rows_of(tokens_BT, call);
  if (scale_ == 1) return rows;
  return rows * at::scalar_tensor(scale_, rows.scalar_type()).item();
}

at::Tensor TokenEmbedding::rows_of(const at::Tensor& tokens_BT, const Call& call) {
  if (tensor_.whole()) return ops::embed_tokens(tokens_BT, table_);
  if (table_.cut == Cut::tensor)
    return ops::reduce_scatter_rows(ops::embed_own_tokens(tokens_BT, table_), call.tensor());
  const std::int64_t own = tokens_BT.numel() / tensor_.count;
  return ops::embed_tokens(tokens_BT.flatten().narrow(0, tensor_.index * own, own), table_);
}

Features TokenEmbedding::run(LayerPass& pass, const Features& tokens_BT) {
  if (pass.costs == nullptr) return {.tensor = forward(tokens_BT.tensor, pass.call)};
  LayerCosts& costs = *pass.costs;
  const std::int64_t own = tokens_BT.rows() * tokens_BT.columns() / tensor_.count;
  Features rows{.size = {{own, table_.shape.at(1)}, costs.compute_bytes()}};
  costs.require(SizeOf::width, rows.columns(), kernels::kEmbeddingDims);
  LayerCost layer{.name = layer_name_of(table_)};
  count(table_, layer);
  costs.add(std::move(layer));
  if (table_.cut == Cut::tensor)
    add_reduce_scatter_rows(costs.exchanges(), rows.bytes() * tensor_.count, costs.compute_bytes(),
                            table_.trainable);
  costs.hold(0, rows.bytes());  // their gradient
  return rows;
}

}  // namespace dstrain
