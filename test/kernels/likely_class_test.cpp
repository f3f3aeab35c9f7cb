#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <limits>

#include "engine/kernels/loss/ops_likely_class.h"
#include "engine/kernels/op_support.h"
#include "test/kernels/devices.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

namespace dstrain {
namespace {

struct LikelyClasses {
  at::Tensor classes, logarithms;
};

LikelyClasses likely_classes(const at::Tensor& logits) {
  LikelyClasses found{
      .classes = at::empty({logits.size(0)}, logits.options().dtype(at::kLong)),
      .logarithms = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat))};
  ops::likely_class(logits, found.classes, found.logarithms);
  return found;
}

TEST_CASE("the likely class of a row equals its reference", "[kernels][loss]") {
  const at::Device device = GENERATE(from_range(test::devices()));
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  // Rows begin at any element where the classes are odd; one row is shared by several blocks.
  const std::int64_t rows = GENERATE(1, 2, 17, 300);
  const std::int64_t classes = GENERATE(1, 5, 1003, 8200, 50257, 151936);
  if (!test::worth_it(device, rows * classes)) return;
  if (rows * classes > 10'000'000) return;  // the reference is a loop
  CAPTURE(device.str(), c10::toString(type), rows, classes);
  test::Random random(5);
  at::Tensor logits = random({rows, classes}, type);
  logits[0].fill_(1);  // all alike: the lowest class
  if (rows > 1) {
    logits[1] *= 30;  // one class has nearly everything
    logits[1][0] = -std::numeric_limits<float>::infinity();
    logits[1][classes - 1] = 200;
  }
  const LikelyClasses wanted{.classes = at::empty({rows}, at::kLong),
                             .logarithms = at::empty({rows})};
  kernels::reference::likely_class({.logits = logits.const_data_ptr(),
                                    .best = wanted.classes.mutable_data_ptr<std::int64_t>(),
                                    .logarithm = wanted.logarithms.mutable_data_ptr<float>(),
                                    .scratch = nullptr,
                                    .rows = rows,
                                    .classes = classes,
                                    .parts = 1,
                                    .dtype = ops::kernel_dtype(logits)});
  const at::Tensor own = logits.to(device);
  const LikelyClasses found = likely_classes(own);
  REQUIRE(found.classes.cpu().equal(wanted.classes));
  REQUIRE(test::far(found.logarithms, wanted.logarithms, at::kFloat, classes) == "");
  REQUIRE(likely_classes(own).logarithms.equal(found.logarithms));
}

TEST_CASE("a nan among the scores is told by the logarithm", "[kernels][loss]") {
  const at::Device device = GENERATE(from_range(test::devices()));
  const std::int64_t place = GENERATE(0, 3, 9, 5000);
  test::Random random(6);
  const at::Tensor logits = random({3, 5001});
  logits[1][place] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor logarithms = likely_classes(logits.to(device)).logarithms.cpu();
  REQUIRE(std::isfinite(logarithms[0].item<float>()));
  REQUIRE(std::isnan(logarithms[1].item<float>()));
  REQUIRE(std::isfinite(logarithms[2].item<float>()));
}

}  // namespace
}  // namespace dstrain
