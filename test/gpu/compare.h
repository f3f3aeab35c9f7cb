#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/randn.h>

#include <vector>

#include "engine/kernels/gpu.h"
#include "engine/kernels/op_support.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

/// Kernels against their references: what the tests on a GPU share.
namespace dstrain::test {

inline const void* in(const at::Tensor& tensor) { return tensor.const_data_ptr(); }
inline void* out(const at::Tensor& tensor) { return tensor.mutable_data_ptr(); }
inline float* fp32(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

/// Types for tests that multiply: without bf16 where the GPU's tensor cores do not know it.
inline std::vector<at::ScalarType> with_products(std::vector<at::ScalarType> types) {
  if (!kernels::cuda::gpu_limits().bf16_products) std::erase(types, at::kBFloat16);
  return types;
}
/// bf16, or fp16 there.
inline at::ScalarType short_type() { return with_products({at::kBFloat16, at::kHalf}).front(); }

/// Random numbers on the GPU.
inline at::Tensor normal(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes, at::TensorOptions(at::kCUDA).dtype(type));
}

/// Error of the norms; `expected` is in double on the host.
inline double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual.cpu().to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
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
