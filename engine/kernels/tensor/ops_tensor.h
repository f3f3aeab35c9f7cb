#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/parameter.h"
#include "engine/mesh/split.h"

/// Operators of ranks that share the matrices of a model (Shoeybi et al. 2019, arXiv:1909.08053,
/// sec. 3) and, between the matrices, the rows of a micro-batch (Korthikanti et al. 2022,
/// arXiv:2205.05198, sec. 4.2.2). All these ranks call them in the same order, forward and
/// backward. `ranks` may be null: one rank alone, for which rows are neither sent nor cut.
///
/// Legend: M rows of the micro-batch, m = M / ranks those of this rank, D width. Compute dtype
/// fp32, bf16 or fp16; wrong shapes are Error{internal}.
namespace dstrain::ops {

/// The rows of all ranks: [m, D] -> [M, D]. The gradient of a row is the sum of the ranks'.
[[nodiscard]] at::Tensor all_gather_rows(const at::Tensor& x, Communicator* ranks);

/// This rank's rows of the sum over ranks: [M, D] -> [m, D].
[[nodiscard]] at::Tensor reduce_scatter_rows(const at::Tensor& x, Communicator* ranks);

/// linear of the rows of all ranks, in one operator: equal to linear(all_gather_rows(x, ranks),
/// weight, bias) up to the order in which a product adds. x [m, K] -> [M, N]. Products with rows
/// that are there run while others travel, where the ranks can do that (Communicator::overlaps).
[[nodiscard]] at::Tensor linear_of_gathered(const Measured& x_mK, Parameter& weight,
                                            Parameter* bias, Communicator* ranks);
/// reduce_scatter_rows(linear(x, weight), ranks) likewise: x [M, K] -> [m, N].
[[nodiscard]] at::Tensor summed_linear(const Measured& x_MK, Parameter& weight,
                                       Communicator* ranks);

/// The same of gelu_linear without a bias behind it: z [M, F] -> [m, N].
[[nodiscard]] at::Tensor summed_gelu_linear(const at::Tensor& z_MF, Parameter& input_bias,
                                            Parameter& weight, Gelu kind, Communicator* ranks,
                                            Keep keep = Keep::nothing);

/// The part's rows of what all ranks have: [M, D] -> [m, D].
[[nodiscard]] at::Tensor own_rows(const at::Tensor& x, const AxisPart& part);

/// Some rows of all ranks on each of them: x [m, D], rows [n] int64 in [0, M) -> [n, D].
[[nodiscard]] at::Tensor collect_rows(const at::Tensor& x, const at::Tensor& rows,
                                      Communicator* ranks);

/// x + bias, in place: x [m, N], bias [N].
[[nodiscard]] at::Tensor add_bias(const at::Tensor& x, Parameter& bias);

/// Rows of a table of which this rank holds some (Parameter::parts says which): tokens [...] int64
/// -> [M, D], zeros for tokens whose rows others hold.
[[nodiscard]] at::Tensor embed_own_tokens(const at::Tensor& tokens, Parameter& table);

/// As linear_cross_entropy, of a table cut by rows: x [m, D], table [V / ranks, D], labels [M] and
/// weights [M] of all rows. The first rank adds to `totals`. x is gathered, and its gradient
/// summed, chunk by chunk.
[[nodiscard]] at::Tensor cut_cross_entropy(const at::Tensor& x_mD, Parameter& table,
                                           const at::Tensor& labels, const at::Tensor& weights,
                                           const at::Tensor& totals, Communicator& ranks);
/// Rows of this rank in each of its chunks, `rows` in all; `classes` of this rank.
[[nodiscard]] std::vector<std::int64_t> cut_cross_entropy_chunks(std::int64_t rows, int ranks,
                                                                 std::int64_t classes,
                                                                 int element_bytes);
/// Columns of fp32 that a rank tells the others of each row.
inline constexpr int kCutLossColumns = 4;

/// The class with the largest of all ranks' logits [B, V / ranks], the lower one of equals: [B]
/// int64.
[[nodiscard]] at::Tensor most_likely_class(const at::Tensor& logits, Communicator& ranks);

}  // namespace dstrain::ops
