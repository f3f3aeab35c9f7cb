#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/kernels/parameter.h"

/// Products of rows sorted by expert with the matrices of their experts; not for other layers.
namespace dstrain::ops {

/// How many rows each expert has.
struct ExpertRows {
  std::vector<std::int64_t> counts;  ///< [E]
  /// [E] int32 on the rows' device: the end of each expert's rows. One kernel then runs the
  /// products of all experts; undefined: one product an expert.
  at::Tensor ends;
};

enum class ExpertKernel { automatic, grouped, single };

/// `x`: what the rows look like. `automatic` takes the faster kernel; `grouped` needs bf16 on
/// compute capability 9.0.
[[nodiscard]] ExpertRows expert_rows(std::vector<std::int64_t> counts, const at::Tensor& x,
                                     ExpertKernel kernel = ExpertKernel::automatic);

/// Rows and columns of the matrix of one expert, of those that `weight` [E * rows, columns] holds.
struct ExpertMatrix {
  std::int64_t rows, columns;
};
[[nodiscard]] ExpertMatrix expert_matrix(const Parameter& weight, const at::Tensor& x,
                                         std::size_t experts);

/// x [R, K] by the matrices [N, K] of their experts: [R, N]; not `transposed`: by matrices [K, N].
[[nodiscard]] at::Tensor expert_products(const at::Tensor& x, const Parameter& weight,
                                         const ExpertRows& rows, bool transposed);

/// Adds dy^T x by expert to the weight's gradient.
void add_expert_gradients(const at::Tensor& x, const at::Tensor& dy, Parameter& weight,
                          const ExpertRows& rows);

/// The products of up to `max_rows` rows with a matrix [rows, columns] of one expert; its gradient
/// is of the type `gradient`, none: it is frozen.
void rehearse_expert_products(std::int64_t max_rows, const ExpertMatrix& shape,
                              const at::TensorOptions& options,
                              std::optional<at::ScalarType> gradient);

}  // namespace dstrain::ops
