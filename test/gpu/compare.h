#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>

#include <utility>
#include <vector>

#include "engine/kernels/op_support.h"
#include "test/kernels/devices.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

/// Kernels against their references: what the tests on a GPU share.
namespace dstrain::test {

inline const void* in(const at::Tensor& tensor) { return tensor.const_data_ptr(); }
inline void* out(const at::Tensor& tensor) { return tensor.mutable_data_ptr(); }
inline float* fp32(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

/// Types for tests that multiply.
inline std::vector<at::ScalarType> with_products(std::vector<at::ScalarType> types) {
  return multiplied(at::kCUDA, std::move(types));
}
inline at::ScalarType short_type() { return short_type(at::kCUDA); }

/// Random numbers on the GPU.
inline at::Tensor normal(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes, at::TensorOptions(at::kCUDA).dtype(type));
}

/// Runs the kernel twice, so that a result which does not repeat bit for bit is found too.
/// `args(tensors)` fills the argument struct. Tensors from `first_result` on are results; their
/// initial values count.
template <typename MakeArgs, typename OnGpu, typename OnHost>
void compare(const Tensors& tensors, std::size_t first_result, std::int64_t length,
             const MakeArgs& args, const OnGpu& on_gpu, const OnHost& on_host) {
  const Tensors host = clones(tensors, at::kCPU);
  on_host(args(host));
  Tensors gpu[2];
  for (Tensors& run : gpu) {
    run = clones(tensors, at::kCUDA);
    on_gpu(args(run), ops::current_stream());
  }
  for (std::size_t i = first_result; i < tensors.size(); ++i) {
    CAPTURE(i);
    REQUIRE(far(gpu[0][i], host[i], tensors[i].scalar_type(), length) == "");
    REQUIRE(gpu[0][i].equal(gpu[1][i]));
  }
}

}  // namespace dstrain::test
