#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/linear/fp8.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/parameter.h"

/// Products with a weight [N, ...] and their gradients, in the precision that it asks for: the
/// compute dtype, or FP8 with input and weight in e4m3 and the gradient of the output in e5m2. What
/// the operators with a weight share; not for other layers.
namespace dstrain::ops {

/// The weight as [N, K], whatever its trailing shape; checked as by value_of. One in 4 bits is
/// decoded into memory of its own.
[[nodiscard]] at::Tensor matrix_of(const Parameter& weight, const at::Tensor& x);

/// K of it.
[[nodiscard]] std::int64_t columns_of(const Parameter& weight);

/// Throws unless x is [M, K], and bias, if any, [N].
void check_linear(const at::Tensor& x, const Parameter& weight, const Parameter* bias);

struct LinearOutput {
  at::Tensor y;
  /// What the weight's gradient needs of x: x itself, or its columns in FP8; undefined for a frozen
  /// weight, and with Keep::nothing.
  at::Tensor kept = {};
  at::Tensor scale = {};         ///< of x in FP8, also for a frozen weight; else undefined
  at::Tensor weight_scale = {};  ///< of the weight, likewise
};

/// `keep` where products with the weight are not in FP8, else Keep::nothing.
[[nodiscard]] Keep keep_hidden(Keep keep, const Parameter& weight, const at::Tensor& x);

/// y = x weight^T (+ bias); x is dense. y carries what is needed of its gradient. `sum`: an
/// empty_output that has been written, to which the product is added; then without a bias.
[[nodiscard]] LinearOutput apply_linear(const Measured& x, Parameter& weight, Parameter* bias,
                                        Keep keep = Keep::input, const at::Tensor& sum = {});

/// Pieces of apply_linear in the compute dtype, for rows that come one part after the other:
/// what it gives of `rows` rows like those of x, with y to be written,
[[nodiscard]] LinearOutput empty_output(const at::Tensor& x, std::int64_t rows,
                                        const Parameter& weight, const Parameter* bias);
/// and y of some rows.
void multiply_rows(const at::Tensor& x, const Parameter& weight, const Parameter* bias,
                   const at::Tensor& y, bool add = false);

/// The gradient of y, for the gradients of x and of the parameters.
class LinearGradient {
 public:
  /// `bias` may be null; `for_input`: input() will be called.
  LinearGradient(const at::Tensor& dy, Parameter& weight, Parameter* bias, bool for_input);
  /// For dy that is only codes in e5m2, without bias: rows for input(), columns for a trained
  /// weight. x is like `like`, of which only dtype and device count.
  LinearGradient(Quantized dy, const at::Tensor& like, Parameter& weight);

  /// dy weight, added to `sum` [M, K] where that is defined. `weight_scale` as apply_linear gave
  /// it: the weight is not searched again.
  [[nodiscard]] at::Tensor input(const at::Tensor& weight_scale, const at::Tensor& sum = {}) const;
  /// Adds dy^T x to the weight's gradient and the sum of dy to that of the bias, where they are
  /// trained. `kept` and `scale` as apply_linear gave them, or would have. The product comes later
  /// where the weight asks for that (Parameter::later), with the bias where it sums that, too.
  void add_to_parameters(const at::Tensor& kept, const at::Tensor& scale) const;

 private:
  void add_now(const at::Tensor& kept, const at::Tensor& scale) const;
  void add_to_bias() const;
  [[nodiscard]] bool trains_bias() const { return bias_ != nullptr && bias_->trainable; }
  [[nodiscard]] std::int64_t outputs() const { return weight_.shape.front(); }

  at::Tensor dy_;  ///< [M, N]; empty where there are only codes
  Parameter& weight_;
  Parameter* bias_ = nullptr;
  at::Tensor column_sums_;  ///< of dy, over parts of its rows; undefined: not known
  Quantized fp8_;           ///< of dy; undefined in the compute dtype
};

}  // namespace dstrain::ops
