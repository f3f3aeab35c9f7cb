#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/kernels/parameter.h"
#include "engine/mesh/split.h"

/// Operators of a mixture of experts with their gradients. The rules are those of
/// engine/kernels/ops.h; on a GPU sizes are those of taken_sizes.h.
///
/// Legend: B samples, T tokens, M = B * T rows, D width, E experts, k experts of a row, I hidden
/// width of an expert.
namespace dstrain::ops {

struct RouterShape {
  std::int64_t experts = 0;
  std::int64_t chosen = 0;  ///< experts of a row
  bool normalize = false;   ///< the weights of a row add up to 1
};

/// Which tokens the rows of a rank are, where the samples of a micro-batch are spread over ranks.
struct SampleParts {
  int sequence = 1;               ///< ranks that have equal parts of each sample
  at::Tensor places = {};         ///< of several, OwnRows::rows
  AxisPart rows = {};             ///< of those parts, sample after sample, the rows that are here
  Communicator* ranks = nullptr;  ///< all that have parts; null: this one alone
};

/// Losses that keep the router even: coefficients of the mean over the tokens of a sample that
/// count, also of those that other ranks have.
struct RouterLosses {
  double balance = 0;       ///< arXiv:2101.03961, eq. 4, all choices of a token counted
  double z = 0;             ///< arXiv:2202.08906, eq. 5
  std::int64_t tokens = 0;  ///< of a sample
  at::Tensor seed = {};     ///< [] fp32, gradient of the sum over samples; undefined: no losses
  at::Tensor lengths = {};  ///< [B] int32, as Batch::lengths; undefined: all tokens count
  /// [] fp32 += loss_factor * sum over samples of the balance loss; of several ranks on the first.
  at::Tensor loss_sum = {};
  double loss_factor = 1;
  SampleParts parts = {};
};

struct Routes {
  at::Tensor weights;  ///< [M, k] fp32
  at::Tensor choices;  ///< [M, k] int32, the largest logit first, of equal ones the lower index
};

/// Softmax over all of logits [M, E] in fp32, and the k largest of each row. Adds nothing to
/// `loss_sum` where the balance coefficient is 0; else the ranks that have parts of the samples
/// exchange balance_bytes(...) forward.
[[nodiscard]] Routes route(const at::Tensor& logits_ME, const RouterShape& shape,
                           const RouterLosses& losses = {});
/// Bytes that it keeps for backward, choices and weights included, for `rows` rows.
[[nodiscard]] std::int64_t route_saved_bytes(const RouterShape& shape, std::int64_t rows,
                                             int element_bytes);
/// Bytes of the all-reduce by which ranks add up the balance of `samples` samples.
[[nodiscard]] std::int64_t balance_bytes(const RouterShape& shape, std::int64_t samples);

struct ExpertOrder {
  at::Tensor place;   ///< [M, k] int32: rows sorted by expert, those of an expert in their order
  at::Tensor counts;  ///< [E] int32
};
[[nodiscard]] ExpertOrder sort_by_expert(const at::Tensor& choices_Mk, std::int64_t experts);

/// Places of `rows` rows that come sorted by rank, those of a rank by expert, `counts` [ranks * E]
/// int32 of each: [rows, 1] int32, sorted by expert, those of an expert by rank.
[[nodiscard]] at::Tensor place_by_expert(const at::Tensor& counts, std::int64_t experts,
                                         std::int64_t rows);

/// Each row of x [M, D] at its places: [M * k, D].
[[nodiscard]] at::Tensor spread_rows(const at::Tensor& x_MD, const at::Tensor& place_Mk);

/// The opposite where a row has one place: row place[m, 0] of y [M, D] at m.
[[nodiscard]] at::Tensor gather_rows(const at::Tensor& y_MD, const at::Tensor& place_M1);

/// For rows [R, D] sorted by expert, `counts` of each: (silu(x gate^T) * (x up^T)) down^T by the
/// expert's own matrices. Gradients of both may come later (Parameter::later). gate_up [E * 2I, D]
/// holds gate, then up, of one expert after the other; down [E * D, I]. An expert without rows
/// takes no product; its gradient is 0. Saves x and its product with gate_up. Shazeer 2020,
/// arXiv:2002.05202, eq. 5.
[[nodiscard]] at::Tensor expert_mlps(const at::Tensor& x_RD,
                                     const std::vector<std::int64_t>& counts, Parameter& gate_up,
                                     Parameter& down);

/// One product of each kind that expert_mlps and its gradients take, for each number of rows of an
/// expert that has an algorithm of its own, up to `max_rows`: D = `width`, I = `expert_width`,
/// dtype and device of `options`; `gradient`: also those for weights' gradients of that type. On a
/// GPU the first product by an algorithm may wait for the whole device.
void rehearse_expert_mlps(std::int64_t max_rows, std::int64_t width, std::int64_t expert_width,
                          const at::TensorOptions& options, std::optional<at::ScalarType> gradient);

/// Sum of the experts' rows: weights[m, j] * y[place[m, j]] + sigmoid(gate[m]) * shared[m], in
/// fp32, rounded once. y [M * k, D], shared [M, D] and gate [M, 1], or both undefined -> [M, D].
[[nodiscard]] at::Tensor combine_rows(const at::Tensor& y, const at::Tensor& place_Mk,
                                      const at::Tensor& weights_Mk, const at::Tensor& shared_MD,
                                      const at::Tensor& gate_M1);

}  // namespace dstrain::ops
