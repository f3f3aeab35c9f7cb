#pragma once

#include <ATen/core/Tensor.h>

/// What both norms do for a product that wants the maxima of their output; not for other layers.
namespace dstrain::ops {

/// The kernel of a norm leaves a maximum for each warp; those become the parts that `maxima` has.
class NormMaxima {
 public:
  /// For a norm over x's rows; `maxima` may be undefined, then nothing is done.
  NormMaxima(const at::Tensor& x, const at::Tensor& maxima);
  /// Where the kernel leaves its maxima; or null.
  [[nodiscard]] float* parts() const;
  /// After the kernel, on the current stream.
  void finish() const;

 private:
  at::Tensor parts_, maxima_;
};

}  // namespace dstrain::ops
