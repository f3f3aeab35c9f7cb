#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "engine/comm/communicator.h"

/// all_gather_rows and reduce_scatter_rows in two calls, between which other work goes on. Backward
/// is in two parts, too: the end begins the opposite exchange, and the beginning ends it.
///
/// On a GPU exchanges run one after the other on a stream of their own. All ranks begin them in the
/// same order. Legend as in ops_tensor.h.
namespace dstrain::ops {

struct RowExchange;

/// Rows that are under way.
struct BegunRows {
  at::Tensor input;  ///< in the graph: what was given
  std::shared_ptr<RowExchange> exchange;
};

/// [m, D] -> [M, D] at the end.
[[nodiscard]] BegunRows begin_all_gather_rows(const at::Tensor& x, Communicator& ranks);
/// [M, D] -> [m, D] at the end.
[[nodiscard]] BegunRows begin_reduce_scatter_rows(const at::Tensor& x, Communicator& ranks);
/// The result; later work on the current stream comes after the exchange. Once for each.
[[nodiscard]] at::Tensor end_rows(const BegunRows& rows);

}  // namespace dstrain::ops
