#include "engine/kernels/conv/image_activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardswish_backward.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/hardtanh_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>

namespace dstrain::ops {

at::Tensor activate(const at::Tensor& z, ImageActivation activation) {
  using enum ImageActivation;
  switch (activation) {
    case relu:
      return at::relu(z);
    case relu6:
      return at::hardtanh(z, 0, 6);
    case silu:
      return at::silu(z);
    case hardswish:
      return at::hardswish(z);
    case none:
      break;
  }
  return z;
}

at::Tensor activation_gradient(const at::Tensor& dy, const at::Tensor& z,
                               ImageActivation activation) {
  using enum ImageActivation;
  switch (activation) {
    case relu:
      return at::threshold_backward(dy, z, 0);
    case relu6:
      return at::hardtanh_backward(dy, z, 0, 6);
    case silu:
      return at::silu_backward(dy, z);
    case hardswish:
      return at::hardswish_backward(dy, z);
    case none:
      break;
  }
  return dy;
}

}  // namespace dstrain::ops
