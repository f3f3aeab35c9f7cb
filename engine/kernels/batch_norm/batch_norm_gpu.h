#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/batch_norm/kernels.h"
#include "engine/kernels/batch_norm/ops_batch_norm.h"

/// Batch norm on a GPU by the kernels of kernels.h, in the steps that the operators are made of; no
/// autograd. Legend and fillers as in batch_norm.h.
namespace dstrain::ops {

/// [4 C + 1] fp32: mean, 1 / sqrt(variance + eps), scale and shift of each channel, N. N = 0 marks
/// fixed statistics.
class GpuStatistics {
 public:
  explicit GpuStatistics(at::Tensor all) : all_(std::move(all)) {}
  [[nodiscard]] const at::Tensor& all() const { return all_; }
  [[nodiscard]] std::int64_t channels() const { return (all_.numel() - 1) / 4; }
  [[nodiscard]] float* mean() const { return vector(0); }
  [[nodiscard]] float* rstd() const { return vector(1); }
  [[nodiscard]] float* scale() const { return vector(2); }
  [[nodiscard]] float* shift() const { return vector(3); }
  [[nodiscard]] float* count() const { return vector(4); }

 private:
  [[nodiscard]] float* vector(std::int64_t i) const {
    return all_.mutable_data_ptr<float>() + i * channels();
  }
  at::Tensor all_;
};

/// Null: all samples count.
[[nodiscard]] const std::int32_t* valid_pointer(const at::Tensor& valid);
[[nodiscard]] kernels::Activation kernel_activation(ImageActivation activation);

/// Sums of x - centre and of its square; undefined where they are not made.
struct GpuSums {
  at::Tensor partial;  ///< [rows, 2, C]
  at::Tensor centre;   ///< [C]
};

/// Those by which `call` normalises x. `sums`: those that were made where x was written; undefined:
/// they are made here.
[[nodiscard]] GpuStatistics gpu_statistics(const at::Tensor& x, const BatchNormCall& call,
                                           GpuSums sums = {});

/// activation(x scale + shift), then times `gate` [B, C] fp32; or activation((x scale + shift) *
/// factor + residual) with the factors of `drop`. Undefined: none. The residual, too, is normalised
/// by what is not null.
struct GpuApply {
  ImageActivation activation = ImageActivation::none;
  at::Tensor residual = {}, gate = {};
  DropMask drop = {};
  const GpuStatistics* residual_statistics = nullptr;
};
[[nodiscard]] at::Tensor gpu_batch_norm_apply(const at::Tensor& x, const GpuStatistics& statistics,
                                              const GpuApply& how);

/// What the gradients of one batch norm are made of.
struct GpuGradient {
  at::Tensor x, dy;
  at::Tensor y;  ///< the output, of a ReLU after a residual; else undefined
  GpuStatistics statistics;
  ImageActivation activation;
  at::Tensor valid;
  DropMask drop = {};
};

/// [rows, 2, C]: sums of dz and of dz (x - mean). `dz`: as x, where dz without the factors of
/// `drop` is written; undefined: nowhere.
[[nodiscard]] at::Tensor gpu_gradient_sums(const GpuGradient& of, const at::Tensor& dz = {});

/// From such sums, [2, C]: slope and offset, so that dx = scale dz + (x - mean) slope + offset.
/// Adds the gradients of the parameters that are trained.
[[nodiscard]] at::Tensor gpu_finish_gradient(const at::Tensor& partial,
                                             const GpuStatistics& statistics, Parameter& weight,
                                             Parameter& bias, Communicator* ranks);

/// dx, and dz where `residual`: the gradient of the residual. Both overwrite nothing.
struct GpuInputGradient {
  at::Tensor dx, dz;
};
[[nodiscard]] GpuInputGradient gpu_input_gradient(const GpuGradient& of,
                                                  const at::Tensor& slope_offset, bool residual);
/// dx of dz, which it overwrites.
void gpu_input_gradient_in_place(const at::Tensor& dz, const at::Tensor& x,
                                 const GpuStatistics& statistics, const at::Tensor& slope_offset,
                                 const at::Tensor& valid);

}  // namespace dstrain::ops
