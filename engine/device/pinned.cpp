#include "engine/device/pinned.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace dstrain {

at::Tensor host_tensor(c10::IntArrayRef shape, c10::ScalarType dtype, c10::Device device) {
  return at::empty(shape,
                   at::TensorOptions(dtype).device(c10::kCPU).pinned_memory(device.is_cuda()));
}

}  // namespace dstrain
