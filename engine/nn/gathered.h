#pragma once

#include <utility>

#include "engine/kernels/ops.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/mesh/split.h"
#include "engine/nn/call.h"
#include "engine/nn/layer_pass.h"
#include "engine/nn/tensor_exchanges.h"

namespace dstrain {

/// The rows of all tensor ranks; without others x itself, with what is known of it.
[[nodiscard]] inline ops::Measured gathered(const ops::Measured& x_mD, const Call& call) {
  return call.tensor() == nullptr ? x_mD : ops::all_gather_rows(x_mD.rows, call.tensor());
}
/// The same, or what it exchanges beside products.
[[nodiscard]] inline Features gathered(LayerPass& pass, const Features& x, const AxisPart& tensor,
                                       const BesideFlops& beside = {}) {
  if (pass.costs == nullptr) {
    ops::Measured all = gathered(x.measured(), pass.call);
    return {.tensor = std::move(all.rows), .maxima = std::move(all.maxima)};
  }
  Features all = x.sized({x.rows() * tensor.count, x.columns()});
  all.counted = x.counted;
  if (!tensor.whole())
    add_all_gather_rows(pass.costs->exchanges(), all.bytes(), pass.costs->compute_bytes(), beside);
  return all;
}

}  // namespace dstrain
