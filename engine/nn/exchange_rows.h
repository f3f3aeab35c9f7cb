#pragma once

#include <ATen/core/Tensor.h>

#include "engine/comm/communicator.h"

namespace dstrain {

/// Rows of x [all sent, D] to and from the ranks of `peers` -> [all received, D]. Backward takes
/// the gradients the opposite way, so every rank of the group must run both, also one without rows.
/// `peers` must outlive the graph.
[[nodiscard]] at::Tensor exchange_rows(const at::Tensor& x, const ExchangedRows& rows,
                                       Communicator& peers);

}  // namespace dstrain
