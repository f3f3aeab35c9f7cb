#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "engine/base/units.h"
#include "engine/kernels/activation/gate.h"
#include "engine/kernels/dtype.h"

/// Products of many rows with matrices of low rank, whose dropout is drawn inside: arguments and
/// the GPU version. The rules are in engine/kernels/kernels.h. Rows are read once for all parts of
/// a launch, and dropped rows are never written.
namespace dstrain::kernels {

/// One map to `rank` columns: u = drop(x) a^T. The mask is that of `Dropout`, for x as it lies in a
/// larger tensor.
struct LowRankPart {
  const void* a;     ///< [rank, columns]
  int rank;          ///< a multiple of 8
  int column;        ///< of u where it begins, a multiple of 8
  float share;       ///< 0: nothing is dropped; up to kMaxLowRankShare
  float scale_of_a;  ///< of a's gradient
  const std::int64_t* seed;
  std::uint64_t place;
  const std::int32_t* rows;                  ///< [rows]; null: the same
  std::int64_t whole_columns, first_column;  ///< multiples of 8; 0: x is all columns
};
inline constexpr int kMaxLowRankParts = 3;
inline constexpr float kMaxLowRankShare = 0.96f;  ///< more is infinity among fp16 numbers

/// The parts of one launch.
struct LowRankParts {
  LowRankPart part[kMaxLowRankParts];
  int count = 0;

  /// Tiles of so many rows of all a, of which none has two parts.
  [[nodiscard]] constexpr int tiles(int rows) const {
    int sum = 0;
    for (int i = 0; i < count; ++i) sum += static_cast<int>(ceil_div(part[i].rank, rows));
    return sum;
  }
};
inline constexpr int kMaxLowRank = 64;  ///< of a launch, each part's a multiple of kLowRankTile
inline constexpr int kLowRankTile = 16;

/// A term of this rank is a part of a launch.
[[nodiscard]] constexpr bool fits_low_rank(std::int64_t rank) {
  constexpr std::int64_t kPack = 8;
  return rank % kPack == 0 && rank <= kMaxLowRank;
}

/// u = drop(x) a^T for each part, sums in fp32.
struct LowRankRows {
  const void* x;                         ///< [rows, columns]
  void* u;                               ///< [rows, u_stride]
  std::int64_t rows, columns, u_stride;  ///< the last two multiples of 8
  LowRankParts parts;
  DType dtype;  ///< of 16 bits
};

/// The gradients: dx (+)= sum of drop(du a), and sums over parts of the rows of
/// scale_of_a * du^T drop(x).
struct LowRankGradients {
  const void* x;   ///< [rows, columns]; null: no `partial` is wanted
  const void* du;  ///< [rows, u_stride]
  void* dx;        ///< [rows, columns]; null: not wanted
  bool add;        ///< to what dx holds
  float* partial;  ///< by part: [low_rank_splits(rows, columns), rank, columns]
  std::int64_t rows, columns, u_stride;
  LowRankParts parts;
  DType dtype;
};

/// LowRankGradients of one part where x = act(gate) up, which is made once more, as by
/// SwigluBackward: in place of dx comes the gradient of gate and up.
struct LowRankGate {
  const void* gate_up;  ///< [rows, 2 columns]: of each row gate, then up
  const void* grad_h;   ///< [rows, columns], the gradient of x but for the term's share
  const void* du;       ///< [rows, u_stride]
  void* grad_gate_up;   ///< [rows, 2 columns]
  float* partial;       ///< [low_rank_splits(rows, columns), rank, columns]; null: not wanted
  std::int64_t rows, columns, u_stride;
  LowRankParts parts;
  DType dtype;
  GateActivation gate;
};

inline constexpr int kLowRankColumns = 128;  ///< of x that a block of the gradients has
/// Blocks that share the rows: few, and so many that all multiprocessors of a large GPU end at
/// about the same time.
[[nodiscard]] constexpr std::int64_t low_rank_splits(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kAtOnce = 396, kMaxSplits = 24, kMinRows = 64;
  constexpr double kWorthIt = 0.97;
  const std::int64_t column_blocks = ceil_div(columns, kLowRankColumns);
  const std::int64_t max_splits = std::clamp<std::int64_t>(rows / kMinRows, 1, kMaxSplits);
  std::int64_t best = 1;
  double best_time = 0;
  for (std::int64_t splits = 1; splits <= max_splits; ++splits) {
    const double time = static_cast<double>(ceil_div(column_blocks * splits, kAtOnce)) /
                        static_cast<double>(splits);
    if (splits > 1 && time >= kWorthIt * best_time) continue;
    best = splits;
    best_time = time;
  }
  return best;
}

/// What comes from y's gradient in one read of it, y = scale * u b^T: sums over parts of the
/// columns of dy b, and over parts of the rows of scale * dy^T u.
struct LowRankOutputs {
  const void* dy;    ///< [rows, columns], rows `dy_stride` apart
  const void* u;     ///< [rows, rank], rows `u_stride` apart
  const void* b;     ///< [columns, rank]
  float* partial_u;  ///< [low_rank_strips(columns), rows, rank]
  float* partial_b;  ///< [low_rank_output_splits(rows, columns), columns, rank]
  void* du;          ///< [rows, rank], rows `u_stride` apart: the sum of partial_u times `scale`
  float scale;       ///< of du
  float scale_of_b;  ///< of partial_b
  std::int64_t rows, columns, dy_stride, u_stride;  ///< all but the first multiples of 8
  int rank;                                         ///< a multiple of 8 up to kMaxOutputRank
  DType dtype;                                      ///< of 16 bits
};
inline constexpr int kMaxOutputRank = 16;
inline constexpr std::int64_t kOutputStrip = 512;  ///< columns of a block
[[nodiscard]] constexpr std::int64_t low_rank_strips(std::int64_t columns) {
  return ceil_div(columns, kOutputStrip);
}
/// As many as let two blocks run on each multiprocessor of a large GPU.
[[nodiscard]] constexpr std::int64_t low_rank_output_splits(std::int64_t rows,
                                                            std::int64_t columns) {
  constexpr std::int64_t kAtOnce = 264, kMinRows = 64;
  return std::clamp<std::int64_t>(kAtOnce / low_rank_strips(columns), 1,
                                  std::max<std::int64_t>(rows / kMinRows, 1));
}

namespace cuda {
/// The current GPU has the shared memory for it.
[[nodiscard]] bool low_rank_outputs_fit();
void low_rank_outputs(const LowRankOutputs& args, cudaStream_t stream);
void low_rank_rows(const LowRankRows& args, cudaStream_t stream);
void low_rank_gradients(const LowRankGradients& args, cudaStream_t stream);
void low_rank_gate(const LowRankGate& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace dstrain::kernels
