#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/parameter.h"

/// Where operators put the gradients of parameters. It alone knows in which number format these are
/// held and whether they hold anything yet: fp32 for vectors, fp32 or bf16 for matrices
/// (precision.gradients).
namespace dstrain::ops {

/// fp32 for a kernel of ours: the gradient itself, or zeros beside a narrower one.
class Fp32Sum {
 public:
  [[nodiscard]] float* data() const;                   ///< null: the parameter is frozen
  [[nodiscard]] bool write() const { return write_; }  ///< it holds nothing: all is to be written
  /// Adds what zeros beside a gradient have become to it.
  void finish() const;

 private:
  friend class GradientSink;
  at::Tensor gradient_, sum_;  ///< undefined: the parameter is frozen
  bool write_ = false;
};

/// Adds to the gradient of one parameter, or overwrites it where its buffer holds nothing yet.
/// product, rows, parts and add do nothing for a frozen parameter. Error{internal} when the
/// gradient is unbound, not dense, of another size than the parameter or not on the device.
class GradientSink {
 public:
  /// `x` is of the device where the operator runs. Nothing is looked at before something is added.
  GradientSink(Parameter& parameter, const at::Tensor& x)
      : parameter_(parameter), device_(x.device()) {}

  /// The parameter is trained.
  [[nodiscard]] bool wanted() const { return parameter_.trainable; }

  /// gradient [M, N] += alpha * output_scale * a [M, K] b [K, N] with fp32 sums; `options.add` is
  /// set here.
  void product(const at::Tensor& a, const at::Tensor& b, ProductOptions options = {}) const;
  /// gradient [N] += sum of dy [M, N] over rows, in fp32.
  void rows(const at::Tensor& dy) const;
  /// gradient += sums of its elements over parts of the rows, fp32 [parts, elements].
  void parts(const at::Tensor& sums) const;
  /// gradient += sum, which has as many elements, in fp32 or the compute dtype.
  void add(const at::Tensor& sum) const;

  /// A vector's gradient, for a kernel that adds to it; null for a frozen parameter.
  [[nodiscard]] float* vector() const;
  /// A gradient for a kernel that adds to fp32 or, if it `can_write`, may write all of it;
  /// `finish` comes behind the kernel.
  [[nodiscard]] Fp32Sum fp32(bool can_write = false) const;
  /// A gradient for a kernel that adds to any format; undefined for a frozen parameter.
  [[nodiscard]] at::Tensor any_format() const;
  /// For products with parts of it, of a trained parameter. Not `add`: it holds nothing, and the
  /// operator writes all of it.
  struct Target {
    at::Tensor tensor;
    bool add = true;
  };
  [[nodiscard]] Target open() const;

  /// Products for this gradient are put off (Parameter::later),
  [[nodiscard]] bool deferred() const { return wanted() && parameter_.later != nullptr; }
  /// and this one, too. It holds what it needs.
  void defer(std::function<void()> product) const;

 private:
  friend bool product_and_rows(const GradientSink&, const GradientSink&, const at::Tensor&,
                               const at::Tensor&);
  [[nodiscard]] const at::Tensor& checked() const;
  [[nodiscard]] bool empty() const { return parameter_.gradient_state == GradientState::empty; }
  void mark_added() const { parameter_.gradient_state = GradientState::added; }

  Parameter& parameter_;
  at::Device device_;
};

/// weight += dy^T x and bias += rows of dy by one product that reads dy once, where that is faster;
/// false: nothing was done. Both are trained. GPU only.
[[nodiscard]] bool product_and_rows(const GradientSink& weight, const GradientSink& bias,
                                    const at::Tensor& x, const at::Tensor& dy);

/// For the owner of the buffer, when operators are done with a gradient: zeroes it where it still
/// holds nothing; true: one of them added to it since the last call.
bool settle_gradient(Parameter& parameter);

}  // namespace dstrain::ops
