#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/kernels/linear/low_rank.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/parameter.h"
#include "engine/nn/call.h"
#include "engine/nn/layer_cost.h"

namespace dstrain {

struct LowRankOptions {
  std::int64_t rank = 0;
  double scale = 1;     ///< of the product
  double dropout = 0;   ///< share of x's elements set to zero in training
  double lr_ratio = 1;  ///< learning rate of b over that of a
};

/// What is added to one matrix of a linear map: y + scale * dropout(x) a^T b^T, where only a and b
/// are trained. Hu et al. 2021, arXiv:2106.09685, sec. 4.1.
class LowRank {
 public:
  /// For a matrix of which this rank has these boxes, of equal columns, and whose outputs begin at
  /// `first_output` of y. Files name the tensors PREFIX.lora_A.weight [rank, columns], which starts
  /// as a linear layer's weight does in PyTorch, and PREFIX.lora_B.weight [rows, rank], which
  /// starts at zero. A cut matrix's rows cut b in the same way, its columns a.
  LowRank(const std::string& prefix, const std::vector<Piece>& boxes, std::int64_t first_output,
          const LowRankOptions& options);

  /// For x [M, columns of this rank]. What ranks with other columns add is left to the sum of y
  /// over these ranks.
  [[nodiscard]] ops::LowRankTerm term(const Call& call);

  void add_parameters(std::vector<Parameter*>& list) { list.insert(list.end(), {&a_, &b_}); }
  void count_parameters(LayerCost& cost) const {
    count(a_, cost);
    count(b_, cost);
  }
  /// Forward, for `rows` rows of x.
  [[nodiscard]] Flops flops(std::int64_t rows) const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(a_.numel() + b_.numel());
  }
  /// Its products with x are those of kernels that hold x in registers.
  [[nodiscard]] bool in_kernels(int compute_bytes) const {
    return compute_bytes == 2 && kernels::fits_low_rank(options_.rank);
  }
  /// What dropout takes as traffic: rows of x or of its gradient are read and written, once forward
  /// and twice backward, or drawn inside products, which takes as long as to read them.
  [[nodiscard]] Bytes dropped_traffic(std::int64_t rows, int compute_bytes, bool backward) const {
    if (options_.dropout == 0) return 0;
    return (in_kernels(compute_bytes) ? 1
            : backward                ? 4
                                      : 2) *
           rows * a_.shape.back() * compute_bytes;
  }
  /// Kept for backward beside x: the rows of x a^T.
  [[nodiscard]] Bytes saved_bytes(std::int64_t rows, int compute_bytes) const {
    return rows * options_.rank * compute_bytes;
  }

 private:
  LowRankOptions options_;
  std::int64_t first_output_;
  std::int64_t whole_columns_, first_column_;
  std::uint64_t name_hash_;
  Parameter a_;
  Parameter b_;
};

}  // namespace dstrain
