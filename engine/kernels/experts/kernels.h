#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"
#include "engine/kernels/taken_sizes.h"

/// Mixture of experts: the router, the order of rows by expert, and sums over the experts of a
/// row. Arguments, the GPU version and the reference. The rules are in engine/kernels/kernels.h,
/// the sizes that it takes in taken_sizes.h.
namespace dstrain::kernels {

/// The `chosen` experts with the largest logits of each row, largest first, of equal ones the lower
/// index; their softmax over all experts, divided by their sum with `normalize`.
struct Route {
  const void* logits;     ///< [rows, experts]
  std::int32_t* choices;  ///< [rows, chosen]
  float* weights;         ///< [rows, chosen]
  float* log_sum;         ///< [rows] logarithm of the sum of exp(logits)
  std::int64_t rows, experts, chosen;
  bool normalize;
  DType dtype;
};

/// How the experts of each sample are used: sums[0, b, e] = sum over the sample's rows that count
/// of softmax(logits)[e], sums[1, b, e] = how many of them chose e. Row r is of sample
/// (first_row + r) / sample_rows and is its token places[first_row + r] % tokens, without `places`
/// (first_row + r) % tokens; the first lengths[b] tokens of a sample count. A sample may have no
/// row.
struct ExpertSums {
  const void* logits;           ///< [rows, experts]
  const float* log_sum;         ///< [rows]
  const std::int32_t* choices;  ///< [rows, chosen]
  const std::int32_t* lengths;  ///< [samples]; null: all tokens count
  const std::int32_t* places;   ///< [samples * sample_rows]; null: sample_rows is tokens
  float* sums;                  ///< [2, samples, experts]
  float* partial;               ///< scratch, expert_sums_scratch(...) elements
  std::int64_t rows, first_row, sample_rows, samples, tokens, experts, chosen;
  DType dtype;
};
[[nodiscard]] std::int64_t expert_sums_scratch(std::int64_t samples, std::int64_t sample_rows,
                                               std::int64_t experts);

/// How evenly: share[b, e] = part of the sample's tokens that chose e, and loss_sum += factor * sum
/// over samples of experts * sum over e of share[b, e] * mean over the tokens of
/// softmax(logits)[e]. Fedus et al. 2021, arXiv:2101.03961, eq. 4 to 6, with every choice of a
/// token counted. Without tokens, as a filler is, a sample has shares of 0.
struct ExpertShares {
  const float* sums;            ///< [2, samples, experts], of all tokens of the samples
  const std::int32_t* lengths;  ///< [samples], tokens of each; null: `tokens`
  float* share;                 ///< [samples, experts]
  float* loss_sum;              ///< [1]; null: not wanted
  float factor;
  std::int64_t samples, tokens, experts;
};

/// grad_logits from the gradient of the weights, plus those of two losses, each a mean over the
/// tokens of a sample: seed * balance * experts * sum over e of share[b, e] * softmax(logits)[e],
/// and seed * z * log_sum^2 (Zoph et al. 2022, arXiv:2202.08906, eq. 5). Rows are of samples, and
/// count, as in ExpertSums.
struct RouteBackward {
  const void* logits;
  const std::int32_t* choices;
  const float* weights;
  const float* log_sum;
  const float* grad_weights;  ///< [rows, chosen]
  const float* seed;          ///< [1]; null: neither loss
  const float* share;         ///< [samples, experts]; null: no balance
  const std::int32_t* lengths;
  const std::int32_t* places;
  void* grad_logits;  ///< [rows, experts]
  float balance, z;
  std::int64_t rows, first_row, sample_rows, tokens, experts, chosen;
  bool normalize;
  DType dtype;
};

/// Where each choice goes when all of them are sorted by expert, those of an expert in their order:
/// place is a permutation of rows * chosen, counts [experts] how many chose each.
struct SortByExpert {
  const std::int32_t* choices;  ///< [rows * chosen]
  std::int32_t* place;          ///< [rows * chosen]
  std::int32_t* counts;         ///< [experts]
  std::int32_t* scratch;        ///< sort_by_expert_scratch(...) elements
  std::int64_t choices_count;   ///< rows * chosen
  std::int64_t experts;
};
[[nodiscard]] std::int64_t sort_by_expert_scratch(std::int64_t choices, std::int64_t experts);

/// The same for rows that come sorted by rank, those of a rank by expert: afterwards they are
/// sorted by expert, those of an expert by rank.
struct PlaceByExpert {
  const std::int32_t* counts;  ///< [ranks, experts]
  std::int32_t* place;         ///< [sum of counts]
  std::int64_t ranks, experts;
};

/// out[place[m, j]] = x[m] for each of `chosen` places of a row.
struct SpreadRows {
  const void* x;              ///< [rows, dim]
  const std::int32_t* place;  ///< [rows, chosen]
  void* out;                  ///< [rows * chosen, dim]
  std::int64_t rows, chosen, dim;
  DType dtype;
};

/// out[m] = sum over j of weights[m, j] * y[place[m, j]] + sigmoid(gate[m]) * shared[m], in fp32 in
/// the order of j, rounded once.
struct CombineRows {
  const void* y;              ///< [rows * chosen, dim]
  const std::int32_t* place;  ///< [rows, chosen]
  const float* weights;       ///< [rows, chosen]; null: all 1
  const void* shared;         ///< [rows, dim]; null: none
  const void* gate;           ///< [rows]; with shared
  void* out;                  ///< [rows, dim]
  std::int64_t rows, chosen, dim;
  DType dtype;
};

struct CombineRowsBackward {
  const void* y;
  const std::int32_t* place;
  const float* weights;
  const void* shared;
  const void* gate;
  const void* grad_out;  ///< [rows, dim]
  void* grad_y;          ///< [rows * chosen, dim]
  float* grad_weights;   ///< [rows, chosen]
  void* grad_shared;     ///< [rows, dim]; null without shared
  void* grad_gate;       ///< [rows]; null without shared
  std::int64_t rows, chosen, dim;
  DType dtype;
};

namespace cuda {
void route(const Route& args, cudaStream_t stream);
void expert_sums(const ExpertSums& args, cudaStream_t stream);
void expert_shares(const ExpertShares& args, cudaStream_t stream);
void route_backward(const RouteBackward& args, cudaStream_t stream);
void sort_by_expert(const SortByExpert& args, cudaStream_t stream);
void place_by_expert(const PlaceByExpert& args, cudaStream_t stream);
void spread_rows(const SpreadRows& args, cudaStream_t stream);
void combine_rows(const CombineRows& args, cudaStream_t stream);
void combine_rows_backward(const CombineRowsBackward& args, cudaStream_t stream);
}  // namespace cuda

namespace reference {
void place_by_expert(const PlaceByExpert& args);
}  // namespace reference

}  // namespace dstrain::kernels
