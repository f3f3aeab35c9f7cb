#include "engine/kernels/norm/norm_maxima.h"

#include "engine/kernels/linear/kernels.h"
#include "engine/kernels/norm/kernels.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {

NormMaxima::NormMaxima(const at::Tensor& x, const at::Tensor& maxima) : maxima_(maxima) {
  if (maxima.defined()) parts_ = scratch(x, {kernels::norm_maxima(x.size(0), x.size(1))});
}

float* NormMaxima::parts() const {
  return parts_.defined() ? parts_.mutable_data_ptr<float>() : nullptr;
}

void NormMaxima::finish() const {
  if (!parts_.defined()) return;
  kernels::cuda::abs_max({.x = parts_.const_data_ptr(),
                          .partial = maxima_.mutable_data_ptr<float>(),
                          .count = parts_.numel(),
                          .dtype = kernels::DType::f32},
                         current_stream());
}

}  // namespace dstrain::ops
