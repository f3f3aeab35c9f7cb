#pragma once

#include <ATen/core/Tensor.h>

#include "engine/comm/communicator.h"
#include "engine/kernels/linear/linear_map.h"

/// Products with a matrix that ranks share, together with the exchange of rows before or behind
/// them (ops_tensor.h): products with rows that are there run while others travel, where
/// Communicator::overlaps says so. Wang et al. 2023, ASPLOS, doi 10.1145/3567955.3567959.
///
/// Legend: M rows of the micro-batch, m = M / ranks those of this rank, K inputs, N outputs of the
/// matrix here.
namespace dstrain::ops {

/// Null: no exchange. At most one of the two is set.
struct RowRanks {
  Communicator* gathered = nullptr;  ///< x is [m, K], the product is with the rows of all
  Communicator* summed = nullptr;    ///< y is [m, N], this rank's rows of the sum over ranks
};

/// As apply_linear without ranks. `kept` is of all rows.
[[nodiscard]] LinearOutput apply_linear(const Measured& x, Parameter& weight, Parameter* bias,
                                        Keep keep, const RowRanks& ranks);

struct RankedGradient {
  LinearGradient output;  ///< of all rows
  at::Tensor input;       ///< [M, K]; undefined unless asked for
};
/// From the gradient of y where it is summed over `summed`, which may be null. `weight_scale` as
/// apply_linear gave it.
[[nodiscard]] RankedGradient gradient_of_sum(const at::Tensor& dy, Parameter& weight,
                                             Parameter* bias, bool for_input,
                                             const at::Tensor& weight_scale, Communicator* summed);

/// Adds to the gradients of the parameters, and returns that of x, where x is gathered from
/// `gathered`, which may be null; undefined unless `for_input`. The rest as apply_linear gave it.
[[nodiscard]] at::Tensor add_and_pass_on(const LinearGradient& dy, const at::Tensor& kept,
                                         const at::Tensor& scale, const at::Tensor& weight_scale,
                                         bool for_input, Communicator* gathered);

}  // namespace dstrain::ops
