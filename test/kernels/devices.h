#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/kernels/gpu.h"

/// Cases that are compiled into test_kernels and test_gpu alike; test_gpu leaves out those that are
/// tagged [cpu].
namespace dstrain::test {

/// Where cases with GENERATE(from_range(devices())) run: a CPU in test_kernels, a GPU in test_gpu.
[[nodiscard]] std::vector<at::Device> devices();

/// Dtypes for cases that multiply: without bf16 where the GPU's tensor cores do not know it.
[[nodiscard]] inline std::vector<at::ScalarType> multiplied(at::Device device,
                                                            std::vector<at::ScalarType> types) {
  if (device.is_cuda() && !kernels::cuda::gpu_limits().bf16_products)
    std::erase(types, at::kBFloat16);
  return types;
}

/// bf16, or fp16 there.
[[nodiscard]] inline at::ScalarType short_type(at::Device device) {
  return multiplied(device, {at::kBFloat16, at::kHalf}).front();
}

/// References are loops of scalars: a CPU takes what they show of its operator from small sizes.
[[nodiscard]] inline bool worth_it(at::Device device, std::int64_t elements) {
  return device.is_cuda() || elements <= 20'000;
}

}  // namespace dstrain::test
