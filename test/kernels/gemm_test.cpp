#include "engine/kernels/linear/gemm.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>

#include "engine/base/error.h"
#include "test/kernels/bounds.h"
#include "test/kernels/devices.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

namespace dstrain {
namespace {

using test::Bounded;
using test::far;

/// `tensor` with columns dense instead of rows.
at::Tensor turned(const at::Tensor& tensor) { return tensor.t().contiguous().t(); }

/// Rows or columns begin at multiples of eight elements.
bool lies_aligned(const at::Tensor& x) { return x.stride(0) % 8 == 0 || x.stride(1) % 8 == 0; }

TEST_CASE("products of views equal those in double, aligned or not", "[kernels][gemm]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto type =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16, at::kHalf})));
  const auto [m, n, k] =
      GENERATE(std::tuple{1, 1, 1}, std::tuple{5, 7, 9}, std::tuple{130, 200, 72},
               std::tuple{1, 2048, 11008}, std::tuple{8, 2560, 896}, std::tuple{3, 4088, 64},
               std::tuple{512, 1024, 768}, std::tuple{64, 333, 4001}, std::tuple{4099, 24, 40},
               std::tuple{24, 4099, 40});
  const bool wide = GENERATE(false, true);  // out in fp32
  if (!test::worth_it(device, std::max({m * n, n * k, m * k}))) return;
  CAPTURE(device.str(), c10::toString(type), m, n, k, wide);
  test::Random random(1, device);
  const auto out_type = wide ? at::kFloat : type;
  const at::Tensor a = random({m, k}, type), b = random({k, n}, type), bias = random({n}, out_type),
                   before = random({m, n + 3}, out_type);
  const at::Tensor b_cut = random({k, n + 13}, type).narrow(1, 3, n);
  b_cut.copy_(b);
  const Bounded sums = test::product(a, b), half = rounded(sums * 0.5, out_type);
  const auto require = [&, length = k](const char* what, const at::Tensor& found,
                                       const Bounded& expected) {
    CAPTURE(what);
    CHECK(far(found, rounded(expected, out_type)) == "");
    CHECK(far(found, expected.value, out_type, length) == "");
  };
  for (const at::Tensor& left : {a, turned(a)}) {
    for (const at::Tensor& right : {b, turned(b), b_cut}) {
      const at::Tensor whole = before.clone(), cut = whole.narrow(1, 2, n);
      ops::multiply(left, right, cut, {.alpha = 0.5, .add = true});
      CAPTURE(left.strides(), right.strides());
      require("added", cut, half + before.narrow(1, 2, n));
      cut.fill_(std::numeric_limits<float>::quiet_NaN());
      ops::multiply(left, right, cut, {.alpha = 0.5});
      require("scaled", cut, sums * 0.5);
      REQUIRE(whole.narrow(1, 0, 2).equal(before.narrow(1, 0, 2)));
      REQUIRE(whole.narrow(1, n + 2, 1).equal(before.narrow(1, n + 2, 1)));
      const at::Tensor out = at::empty_like(cut, at::MemoryFormat::Contiguous),
                       again = at::empty_like(out);
      for (const at::Tensor& each : {out, again}) {
        each.fill_(std::numeric_limits<float>::quiet_NaN());
        ops::multiply(left, right, each);
      }
      require("plain", out, sums);
      REQUIRE(out.equal(again));
      ops::multiply(left, right, out, {.bias = bias});
      // For operands that are not aligned cuBLASLt rounds the product before it adds the bias.
      const bool aligned = lies_aligned(left) && lies_aligned(right) && lies_aligned(out);
      require("with bias", out, (aligned ? sums : rounded(sums, out_type)) + bias);
    }
  }
}

TEST_CASE("a product over nothing is zero, or the bias", "[kernels][cpu]") {
  const at::Tensor a = at::zeros({3, 0}), b = at::zeros({0, 2}), out = at::full({3, 2}, 7.0);
  ops::multiply(a, b, out, {.add = true});
  REQUIRE(out.eq(7).all().item<bool>());
  ops::multiply(a, b, out, {.bias = at::full({2}, 4.0)});
  REQUIRE(out.eq(4).all().item<bool>());
  ops::multiply(a, b, out);
  REQUIRE(out.eq(0).all().item<bool>());
}

TEST_CASE("operands that do not fit are named", "[kernels][cpu]") {
  test::Random random(2);
  const auto message = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
    try {
      ops::multiply(a, b, out);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  REQUIRE(message(random({2, 3}), random({4, 5}), random({2, 5}))
              .find("product of a [2, 3] Float and b [4, 5] Float into out [2, 5] Float") !=
          std::string::npos);
  REQUIRE(message(random({2, 3}), random({3, 5}, at::kHalf), random({2, 5})) != "no error");
  REQUIRE(message(random({2, 3}), random({3, 5}), random({5, 2}).t()) != "no error");
}

}  // namespace
}  // namespace dstrain
