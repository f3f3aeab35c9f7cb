#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"
#include "test/kernels/bounds.h"
#include "test/kernels/non_finite_rows.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {
using test::floats;
using test::indices;

TEST_CASE("softmax_cross_entropy equals cross_entropy_loss with label smoothing", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const double smoothing = GENERATE(0.0, 0.1);
  CAPTURE(c10::toString(dtype), smoothing);
  test::Random random(1);
  const at::Tensor logits = test::leaf(random({6, 10}, dtype)), logits64 = test::exact(logits);
  const at::Tensor labels = indices({0, 9, 4, 4, 2, 7}), weights = floats({1, 1, 0, 1, 2, 1});
  const at::Tensor totals = at::zeros({4});
  const at::Tensor loss = ops::softmax_cross_entropy(logits, labels, weights, smoothing, totals);
  (loss * 3).backward();
  const at::Tensor each =
      at::cross_entropy_loss(logits64, labels, {}, at::Reduction::None, -100, smoothing);
  const at::Tensor loss64 = (each * weights.to(at::kDouble)).sum();
  (loss64 * 3).backward();
  const test::LossBounds bounds = test::cross_entropy(logits, labels, weights, smoothing, 3);
  REQUIRE(test::far(loss, loss64, bounds.loss) == "");
  REQUIRE(test::far(logits.grad(), logits64.grad(), rounded(bounds.dlogits, dtype)) == "");
  REQUIRE(totals[0].equal(loss));
  REQUIRE(totals[3].item<float>() == 6);
}

TEST_CASE("the loss of two labels is that of both by their shares, with its gradient",
          "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const double smoothing = GENERATE(0.0, 0.1);
  CAPTURE(c10::toString(dtype), smoothing);
  test::Random random(7);
  const at::Tensor logits = test::leaf(random({5, 8}, dtype)), logits64 = test::exact(logits);
  const at::Tensor labels = indices({0, 7, 4, 3, 2}), weights = floats({1, 1, 0, 1, 2});
  const ops::SecondLabels second = {indices({1, 7, 2, 0, 5}), floats({0.75, 0.5, 0.6F, 1, 0.9F})};
  const at::Tensor totals = at::zeros({4});
  const at::Tensor loss =
      ops::softmax_cross_entropy(logits, labels, weights, smoothing, totals, second);
  (loss * 3).backward();
  const auto each = [&](const at::Tensor& of) {
    return at::cross_entropy_loss(logits64, of, {}, at::Reduction::None, -100, smoothing);
  };
  const at::Tensor share = second.shares.to(at::kDouble);
  const at::Tensor loss64 =
      ((each(labels) * share + each(second.labels) * (1 - share)) * weights.to(at::kDouble)).sum();
  (loss64 * 3).backward();
  // Two products of shares and their sum more than with one label, of the same sizes.
  test::LossBounds bounds = test::cross_entropy(logits, labels, weights, smoothing, 3);
  const test::LossBounds other = test::cross_entropy(logits, second.labels, weights, smoothing, 3);
  bounds.loss.value = loss64.detach();
  bounds.dlogits.value = logits64.grad();
  bounds.loss.error = 2 * (bounds.loss.error + other.loss.error);
  bounds.dlogits.error = 2 * (bounds.dlogits.error + other.dlogits.error);
  REQUIRE(test::far(loss, loss64, bounds.loss) == "");
  REQUIRE(test::far(logits.grad(), logits64.grad(), rounded(bounds.dlogits, dtype)) == "");
  REQUIRE(totals[3].item<float>() == 5);
  const at::Tensor again = at::zeros({4});
  const ops::SecondLabels whole = {second.labels, at::ones({5})};
  REQUIRE(ops::softmax_cross_entropy(logits, labels, weights, smoothing, again, whole)
              .equal(ops::softmax_cross_entropy(logits, labels, weights, smoothing, again)));
}

TEST_CASE("top-1 and top-5 count classes that score higher, ties going to the lower index",
          "[kernels]") {
  const at::Tensor logits = floats({3, 3, 1, 0, 0, 0, 0}).repeat({4, 1});
  const at::Tensor totals = at::zeros({4});
  (void)ops::softmax_cross_entropy(logits, indices({0, 1, 4, 5}), floats({1, 1, 1, 1}), 0, totals);
  REQUIRE(totals[1].item<float>() == 1);  // class 1 ties with 0 and loses
  REQUIRE(totals[2].item<float>() == 3);  // class 4 is fifth, class 5 sixth
  (void)ops::softmax_cross_entropy(logits, indices({0, 1, 4, 5}), floats({1, 1, 1, 1}), 0, totals);
  REQUIRE(totals[2].item<float>() == 6);
}

TEST_CASE("fillers of weight 0 change nothing, bit for bit, whatever they hold", "[kernels]") {
  test::Random random(2);
  const at::Tensor x = random({4, 6}), weights = floats({1, 0, 1, 0});
  const auto run = [&](float filler, std::int64_t label) {
    at::Tensor logits = x.clone();
    logits[1].fill_(filler);
    logits[3].fill_(filler);
    logits.requires_grad_(true);
    const at::Tensor totals = at::zeros({4});
    const at::Tensor loss =
        ops::softmax_cross_entropy(logits, indices({1, label, 5, label}), weights, 0.1, totals);
    loss.backward();
    return std::vector<at::Tensor>{loss.detach(), totals, logits.grad()};
  };
  const auto zeros = run(0, 0), nans = run(std::numeric_limits<float>::quiet_NaN(), -1);
  for (std::size_t i = 0; i < zeros.size(); ++i) REQUIRE(zeros[i].equal(nans[i]));
  REQUIRE(zeros[2][1].eq(0).all().item<bool>());
}

TEST_CASE("a label outside the classes makes the loss nan instead of passing", "[kernels]") {
  const at::Tensor totals = at::zeros({4});
  const at::Tensor loss =
      ops::softmax_cross_entropy(at::zeros({1, 3}), indices({3}), floats({1}), 0, totals);
  REQUIRE(std::isnan(loss.item<float>()));
  REQUIRE(totals[1].item<float>() == 0);
}

TEST_CASE("a row whose loss is not finite never counts as right", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t classes = GENERATE(5, 16, 1003);
  CAPTURE(c10::toString(dtype), classes);
  test::require_none_counts(at::kCPU, dtype, classes);
}

TEST_CASE("classes that are masked with -inf leave the others as they are", "[kernels]") {
  at::Tensor row = test::right_row(at::kCPU, at::kFloat, 6);
  row[0].fill_(-std::numeric_limits<float>::infinity());
  const test::Counted found = test::counted_by_softmax(row, 0);
  REQUIRE(std::isfinite(found.loss));
  REQUIRE(found.top1 == 1);
}

TEST_CASE("the references count no row whose loss is not finite", "[kernels][reference]") {
  const std::int64_t classes = 5;
  for (const at::Tensor& row : test::rows_not_finite(at::kCPU, at::kFloat, classes)) {
    const std::int64_t label = test::kLabel;
    const float weight = 1;
    float log_sum_exp = 0, loss = 0, row_loss = 0, top1 = 1, totals[4] = {};
    kernels::reference::cross_entropy({.logits = row.const_data_ptr(),
                                       .labels = &label,
                                       .weights = &weight,
                                       .log_sum_exp = &log_sum_exp,
                                       .rows = nullptr,
                                       .loss = &loss,
                                       .totals = totals,
                                       .batch = 1,
                                       .classes = classes,
                                       .smoothing = 0,
                                       .dtype = kernels::DType::f32});
    REQUIRE_FALSE(std::isfinite(loss));
    REQUIRE((totals[1] == 0 && totals[2] == 0 && totals[3] == 1));
    kernels::reference::vocab_loss({.logits = row.mutable_data_ptr(),
                                    .labels = &label,
                                    .weights = &weight,
                                    .grad_loss = nullptr,
                                    .loss = &row_loss,
                                    .top1 = &top1,
                                    .rows = 1,
                                    .classes = classes,
                                    .stride = 8,
                                    .dtype = kernels::DType::f32});
    REQUIRE_FALSE(std::isfinite(row_loss));
    REQUIRE(top1 == 0);
  }
}

}  // namespace
}  // namespace dstrain
