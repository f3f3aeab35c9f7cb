#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <cublasLt.h>

#include <cstdlib>
#include <limits>
#include <string>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/kernels/linear/fp8.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/linear/gemm_cache.h"
#include "test/gpu/compare.h"
#include "test/kernels/tensors.h"

namespace dstrain {
namespace {

using test::far;

constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();

at::Tensor exact_product(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a.to(at::kDouble), b.to(at::kDouble));
}

TEST_CASE("GPU: measuring changes nothing that is added to", "[gpu][gemm]") {
  test::Random random(2);
  const at::Tensor a = random({320, 176}, test::short_type()).to(at::kCUDA),
                   b = random({176, 304}, test::short_type()).to(at::kCUDA);
  const at::Tensor out = at::full({320, 304}, 5.0, a.options().dtype(at::kFloat));
  ops::multiply(a, b, out, {.add = true});  // the first of its kind
  REQUIRE(far(out, exact_product(a, b) + 5, at::kFloat, 176) == "");
}

TEST_CASE("GPU: sums of rows come with a product, or apart", "[gpu][gemm]") {
  const auto type =
      GENERATE(from_range(test::with_products({at::kBFloat16, at::kHalf, at::kFloat})));
  const bool add = GENERATE(false, true);
  const auto [rows, in, out_width] =
      GENERATE(std::tuple{4096, 1024, 3072}, std::tuple{1000, 264, 136}, std::tuple{77, 10, 9});
  test::Random random(3);
  const at::Tensor x = random({rows, in}, type).to(at::kCUDA),
                   dy = random({rows, out_width}, type).to(at::kCUDA);
  const at::ScalarType held =
      type == at::kBFloat16 ? GENERATE(at::kFloat, at::kBFloat16) : at::kFloat;
  const at::Tensor out = at::full({out_width, in}, 2, x.options().dtype(held)),
                   sums = at::full({out_width}, kUnwritten, x.options().dtype(at::kFloat));
  const bool run = ops::multiply_and_sum(dy.t(), x, out, sums, add);
  WARN("sums of rows of " << c10::toString(type) << " [" << rows << ", " << out_width
                          << "], gradient in " << c10::toString(held) << ": "
                          << (run ? "with the product" : "apart"));
  if (!run) return;
  REQUIRE(far(out, exact_product(dy.t(), x) + (add ? 2 : 0), held, rows) == "");
  REQUIRE(far(sums, dy.to(at::kDouble).sum(0), at::kFloat, rows) == "");
}

TEST_CASE("GPU: FP8 products equal those of their codes", "[gpu][gemm][fp8]") {
  const auto type = GENERATE(at::kBFloat16, at::kHalf, at::kFloat);
  const bool fast = GENERATE(false, true), gradient = GENERATE(false, true);
  CAPTURE(c10::toString(type), fast, gradient);
  using kernels::Fp8Format;
  test::Random random(4);
  const at::Tensor a = random({144, 512}, at::kBFloat16).to(at::kCUDA),
                   b = random({272, 512}, at::kBFloat16).to(at::kCUDA);
  const auto a8 = ops::quantize(a, gradient ? Fp8Format::e5m2 : Fp8Format::e4m3, ops::Sides::rows),
             b8 = ops::quantize(b, Fp8Format::e4m3, ops::Sides::rows);
  const at::Tensor product = exact_product(a8.rows.to(at::kFloat), b8.rows.to(at::kFloat).t()) *
                             a8.scale.to(at::kDouble) * b8.scale.to(at::kDouble);
  const at::Tensor out = at::full({144, 272}, kUnwritten, a.options().dtype(type));
  ops::multiply(a8.rows, b8.rows.t(), out,
                {.a_scale = a8.scale, .b_scale = b8.scale, .fast = fast});
  if (!fast) {
    const at::Tensor sum = at::full({144, 272}, 2, out.options());
    ops::multiply(a8.rows, b8.rows.t(), sum,
                  {.add = true, .a_scale = a8.scale, .b_scale = b8.scale});
    REQUIRE(far(sum, product + 2, type, 1 << 14) == "");
  }
  // Short sums keep about 13 bits after the first.
  REQUIRE(far(out, product, fast ? at::kBFloat16 : type, fast ? 512 : 1 << 14) == "");
}

TEST_CASE("GPU: a captured product of a shape not seen before replays", "[gpu][gemm]") {
  test::Random random(5);
  const at::Tensor a = random({176, 208}, test::short_type()).to(at::kCUDA),
                   b = random({208, 240}, test::short_type()).to(at::kCUDA);
  const at::Tensor out = at::full({176, 240}, kUnwritten, a.options());
  const at::Tensor expected = exact_product(a, b);  // makes the library's handle before the capture
  const auto stream = c10::cuda::getStreamFromPool();
  at::cuda::CUDAGraph graph;
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    ops::multiply(a, b, out);
    graph.capture_end();
  }
  graph.replay();
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  REQUIRE(far(out, expected, test::short_type(), 208) == "");
  a.mul_(2);
  graph.replay();
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  REQUIRE(far(out, expected * 2, test::short_type(), 208) == "");
}

TEST_CASE("GPU: what was measured is on disk", "[gpu][gemm]") {
  if (const char* tune = std::getenv("DSTRAIN_GEMM_TUNE"); tune != nullptr && *tune == '0') return;
  test::Random random(6);
  const at::Tensor a = random({96, 224}, test::short_type()).to(at::kCUDA),
                   b = random({112, 224}, test::short_type()).to(at::kCUDA);
  ops::multiply(a, b.t(), at::zeros({96, 112}, a.options()));
  const auto file =
      gemm_cache_file(at::cuda::getCurrentDeviceProperties()->name, cublasLtGetVersion());
  if (file.empty()) return;
  const std::string type = c10::toString(test::short_type());
  REQUIRE(GemmCache(file)
              .find("96 x 112 x 224, a " + type + "/224, b " + type + "/224T, out " + type +
                    "/112, align 16")
              .has_value());
}

}  // namespace
}  // namespace dstrain
