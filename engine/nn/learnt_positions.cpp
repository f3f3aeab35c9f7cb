#include "engine/nn/learnt_positions.h"

#include <ATen/ops/arange.h>

#include <utility>

#include "engine/nn/layer_cost.h"

namespace dstrain {
namespace {

/// The place of each row in its sequence, int64.
at::Tensor places(const Batch& batch) {
  if (batch.own.positions.defined()) return batch.own.positions.to(at::kLong);
  if (batch.sequences.positions.defined()) return batch.sequences.positions.to(at::kLong);
  return at::arange(batch.tokens.size(1), batch.tokens.options()).expand(batch.tokens.sizes());
}

}  // namespace

Features LearntPositions::run(LayerPass& pass, Features rows_mD) {
  if (pass.costs == nullptr) {
    const at::Tensor all = places(*pass.batch).flatten();
    const std::int64_t own = all.numel() / tensor_.count;
    rows_mD.tensor.add_(table_.forward(all.narrow(0, tensor_.index * own, own)));
    return rows_mD;
  }
  LayerCost layer{.name = layer_name_of(table_.table())};
  count(table_.table(), layer);
  // The places of all ranks' rows, which no batch has as int64.
  if (layer.trained > 0)
    layer.saved_bytes = rows_mD.rows() * tensor_.count * static_cast<Bytes>(sizeof(std::int64_t));
  pass.costs->add(std::move(layer));
  pass.costs->hold(rows_mD.bytes(), 0);
  return rows_mD;
}

}  // namespace dstrain
