#pragma once

#include <ATen/ops/full.h>

#include <algorithm>
#include <functional>

#include "test/gpu/compare.h"

/// Kernels of images and their references run by the same code.
namespace dstrain::test {

/// One computation on a device: `args` of the kernel there, or of the reference.
struct Place {
  at::Device device;

  [[nodiscard]] at::Tensor put(const at::Tensor& t) const { return t.clone().to(device); }
  [[nodiscard]] at::Tensor fill(at::IntArrayRef sizes, at::ScalarType type) const {
    return at::full(sizes, 77, at::TensorOptions(device).dtype(type));
  }
  [[nodiscard]] at::Tensor channels(std::int64_t n) const { return fill({n}, at::kFloat); }
  template <typename Args>
  void run(void (*on_gpu)(const Args&, cudaStream_t), void (*on_host)(const Args&),
           const Args& args) const {
    device.is_cuda() ? on_gpu(args, ops::current_stream()) : on_host(args);
  }
};

/// `results(place)` on the GPU, twice with the same bits, and on the host.
inline void compare_places(at::ScalarType type, std::int64_t length,
                           const std::function<Tensors(const Place&)>& results) {
  const Tensors gpu = results({at::kCUDA}), again = results({at::kCUDA}),
                host = results({at::kCPU});
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    CAPTURE(i);
    REQUIRE(far(gpu[i], host[i], gpu[i].scalar_type() == at::kFloat ? type : gpu[i].scalar_type(),
                length) == "");
    REQUIRE(gpu[i].equal(again[i]));
  }
}

inline const int* valid_of(const at::Tensor& valid) {
  return valid.defined() ? valid.const_data_ptr<int>() : nullptr;
}
inline at::Tensor valid_number(const Place& place, std::int64_t samples, bool all) {
  return all ? at::Tensor()
             : place.put(at::full({1}, std::max<std::int64_t>(0, samples - 1), at::kInt));
}

struct ImageSize {
  std::int64_t samples, pixels, channels;
};

}  // namespace dstrain::test
