#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <vector>

#include "engine/kernels/kernels.h"
#include "engine/kernels/linear/fp8.h"
#include "engine/kernels/linear/output_gradient.h"
#include "engine/kernels/ops.h"
#include "test/gpu/compare.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

/// Gradients that carry what their product needs: what a norm's backward finds while it writes.
namespace dstrain {
namespace {

using kernels::Fp8Format;
using test::fp32;
using test::in;
using test::normal;
using test::out;
using test::RowsSize;
using test::Tensors;

at::Tensor minus_ones(at::IntArrayRef sizes) {
  return at::full(sizes, -1, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
}

TEST_CASE("GPU: backward of the norms leaves sums and largest values of what it writes",
          "[gpu][kernels][norm]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const RowsSize s =
      GENERATE(RowsSize{1, 8}, RowsSize{7, 264}, RowsSize{9, 768}, RowsSize{4001, 896},
               RowsSize{300, 1032}, RowsSize{16448, 1280}, RowsSize{2200, 2048}, RowsSize{33, 3072},
               RowsSize{40, 4096}, RowsSize{40, 6136}, RowsSize{40, 8192});
  const bool residual = GENERATE(false, true), centered = GENERATE(false, true);
  if (centered && s.dim > 6144) return;  // too wide for sums of columns
  CAPTURE(c10::toString(type), s.rows, s.dim, residual, centered);
  const at::Tensor x = normal({s.rows, s.dim}, type), weight = normal({s.dim}, type),
                   dy = normal({s.rows, s.dim}, type), past = normal({s.rows, s.dim}, type);
  const at::Tensor wide = x.to(at::kFloat), mean = wide.mean(1),
                   rstd = (wide.var(1, false) + 1e-6).rsqrt();
  Tensors runs[2];
  for (Tensors& run : runs) {
    const std::int64_t parts = kernels::norm_partials(s.rows);
    const at::Tensor dx = at::zeros_like(x), maxima = minus_ones({kernels::kAbsMaxPartials}),
                     sums = minus_ones({parts, s.dim}), partial = minus_ones({parts, 2, s.dim}),
                     dweight = minus_ones({s.dim}), dbias = minus_ones({s.dim});
    if (centered) {
      kernels::cuda::add_layer_norm_backward({.sum = in(x),
                                              .weight = in(weight),
                                              .grad_y = in(dy),
                                              .grad_sum = residual ? in(past) : nullptr,
                                              .mean = fp32(mean),
                                              .rstd = fp32(rstd),
                                              .grad_x = out(dx),
                                              .grad_weight = fp32(dweight),
                                              .grad_bias = fp32(dbias),
                                              .partial = fp32(partial),
                                              .rows = s.rows,
                                              .dim = s.dim,
                                              .dtype = ops::kernel_dtype(x),
                                              .grad_x_sums = fp32(sums),
                                              .maxima = fp32(maxima)},
                                             ops::current_stream());
    } else {
      kernels::cuda::add_rms_norm_backward({.sum = in(x),
                                            .weight = in(weight),
                                            .grad_y = in(dy),
                                            .grad_sum = residual ? in(past) : nullptr,
                                            .rstd = fp32(rstd),
                                            .grad_x = out(dx),
                                            .grad_weight = fp32(dweight),
                                            .partial = fp32(partial),
                                            .rows = s.rows,
                                            .dim = s.dim,
                                            .dtype = ops::kernel_dtype(x),
                                            .maxima = fp32(maxima)},
                                           ops::current_stream());
    }
    run = {dx, maxima, sums, dweight, dbias};
    REQUIRE(maxima.ge(0).all().item<bool>());
    REQUIRE(maxima.max().item<float>() == dx.abs().max().to(at::kFloat).item<float>());
    if (!centered) continue;
    REQUIRE(test::far(sums.to(at::kDouble).sum(0), dx.to(at::kDouble).sum(0), at::kFloat, s.rows) ==
            "");
    const at::Tensor x_hat = (wide.to(at::kDouble) - mean.unsqueeze(1)) * rstd.unsqueeze(1);
    REQUIRE(test::far(dweight, (dy.to(at::kDouble) * x_hat).sum(0) - 1, at::kFloat, s.rows) == "");
    REQUIRE(test::far(dbias, dy.to(at::kDouble).sum(0) - 1, at::kFloat, s.rows) == "");
  }
  for (std::size_t i = 0; i < runs[0].size(); ++i) {
    CAPTURE(i);
    REQUIRE(runs[0][i].equal(runs[1][i]));
  }
}

TEST_CASE("GPU: a layer norm's backward with sums and largest values equals its reference",
          "[gpu][kernels][norm]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const RowsSize s = GENERATE(RowsSize{1, 8}, RowsSize{7, 264}, RowsSize{33, 1024},
                              RowsSize{301, 1280}, RowsSize{17, 3072}, RowsSize{40, 4096});
  CAPTURE(c10::toString(type), s.rows, s.dim);
  test::Random random(9);
  const at::Tensor x = random({s.rows, s.dim}, type), wide = x.to(at::kFloat);
  const at::Tensor mean = wide.mean(1), rstd = (wide.var(1, false) + 1e-6).rsqrt();
  const std::int64_t parts = kernels::norm_partials(s.rows);
  const Tensors host = {x,
                        random({s.dim}, type),
                        random({s.rows, s.dim}, type),
                        random({s.rows, s.dim}, type),
                        mean,
                        rstd,
                        at::zeros_like(x),
                        random({s.dim}),
                        random({s.dim}),
                        random({parts, 2, s.dim}),
                        random({parts, s.dim}),
                        random({kernels::kAbsMaxPartials})};
  const Tensors gpu = test::clones(host, at::kCUDA);
  const auto args = [&](const Tensors& t) {
    return kernels::AddLayerNormBackward{.sum = in(t[0]),
                                         .weight = in(t[1]),
                                         .grad_y = in(t[2]),
                                         .grad_sum = in(t[3]),
                                         .mean = fp32(t[4]),
                                         .rstd = fp32(t[5]),
                                         .grad_x = out(t[6]),
                                         .grad_weight = fp32(t[7]),
                                         .grad_bias = fp32(t[8]),
                                         .partial = fp32(t[9]),
                                         .rows = s.rows,
                                         .dim = s.dim,
                                         .dtype = ops::kernel_dtype(t[0]),
                                         .grad_x_sums = fp32(t[10]),
                                         .maxima = fp32(t[11])};
  };
  kernels::reference::add_layer_norm_backward(args(host));
  kernels::cuda::add_layer_norm_backward(args(gpu), ops::current_stream());
  for (const std::size_t i : {6u, 7u, 8u}) {
    CAPTURE(i);
    REQUIRE(test::far(gpu[i], host[i], type, std::max(s.rows, s.dim)) == "");
  }
  REQUIRE(test::far(gpu[11].max(), host[11].max(), type, s.dim) == "");
  // Each element that is summed may be rounded to its neighbour.
  const double unit =
      2 * test::unit_roundoff(type) * host[6].abs().max().to(at::kDouble).item<double>();
  const at::Tensor apart = gpu[10].sum(0).cpu().to(at::kDouble) - host[10].to(at::kDouble).sum(0);
  REQUIRE(apart.abs().max().item<double>() <=
          static_cast<double>(s.rows) * unit + 1e-5 * static_cast<double>(s.rows));
}

TEST_CASE("GPU: sums of partial sums equal their reference", "[gpu][kernels][norm]") {
  const RowsSize s =
      GENERATE(RowsSize{1, 1}, RowsSize{7, 33}, RowsSize{264, 1280}, RowsSize{129, 2560});
  test::Random random(10);
  test::compare(
      {random({s.rows, s.dim}), random({s.dim})}, 1, s.rows,
      [&](const Tensors& t) {
        return kernels::PartialSums{
            .partial = fp32(t[0]), .sum = fp32(t[1]), .rows = s.rows, .cols = s.dim};
      },
      kernels::cuda::partial_sums, kernels::reference::partial_sums);
}

struct Outcome {
  Tensors gradients;
  ops::GradientFindings found;  ///< in the branch's gradient
  at::Tensor gradient;          ///< that of the branch
};

/// A branch of one product, and a norm behind it; the branch's output is copied where nothing shall
/// be carried.
Outcome branch(const Tensors& given, bool centered, bool fp8, bool carried) {
  Parameter weight = test::parameter_of(given[2]), bias = test::parameter_of(given[3]),
            scale = test::parameter_of(given[4]), shift = test::parameter_of(given[5]);
  weight.fp8 = fp8;
  const at::Tensor x = test::leaf(given[0]), stream = test::leaf(given[1]);
  Outcome outcome;
  const at::Tensor y = ops::linear(x, weight, &bias);
  y.register_hook([&](const at::Tensor& gradient) {
    outcome.found = ops::findings_of(gradient);
    outcome.gradient = gradient;
  });
  const at::Tensor delta = carried ? y : y.clone();
  const auto [sum, z] = centered ? ops::add_layer_norm(stream, delta, scale, shift, 1e-6)
                                 : ops::add_rms_norm(stream, delta, scale, 1e-6);
  torch::autograd::backward({sum, z}, {given[6], given[7]});
  outcome.gradients = {x.grad(), stream.grad(), weight.gradient, bias.gradient, scale.gradient};
  return outcome;
}

TEST_CASE("GPU: products give the same gradients with what the norm behind them found",
          "[gpu][kernels][norm][fp8]") {
  const auto type = GENERATE(from_range(test::with_products({at::kBFloat16, at::kHalf})));
  const bool centered = GENERATE(false, true), fp8 = GENERATE(false, true);
  const RowsSize s =
      GENERATE(RowsSize{208, 96}, RowsSize{1040, 768}, RowsSize{592, 1280}, RowsSize{144, 1024});
  CAPTURE(c10::toString(type), centered, fp8, s.rows, s.dim);
  const Tensors given = {normal({s.rows, 64}, type),
                         normal({s.rows, s.dim}, type),
                         normal({s.dim, 64}, type) * 0.1,
                         normal({s.dim}, type),
                         normal({s.dim}, type),
                         normal({s.dim}, type),
                         normal({s.rows, s.dim}, type) * 1e-2,
                         normal({s.rows, s.dim}, type) * 1e-2};
  (void)branch(given, centered, fp8, false);  // chooses the products' algorithms
  const Outcome plain = branch(given, centered, fp8, false),
                carried = branch(given, centered, fp8, true),
                again = branch(given, centered, fp8, true);
  REQUIRE(!plain.found.column_sums.defined());
  REQUIRE(!plain.found.maxima.defined());
  REQUIRE(carried.found.column_sums.defined() == centered);
  REQUIRE(carried.found.maxima.defined() == fp8);
  REQUIRE(carried.gradient.equal(plain.gradient));
  for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
    CAPTURE(i);
    REQUIRE(carried.gradients[i].equal(again.gradients[i]));
    if (i == 3) {  // the bias: another order
      REQUIRE(test::far(carried.gradients[i], plain.gradient.to(at::kDouble).sum(0), at::kFloat,
                        s.rows) == "");
    } else if (i == 2 && centered && !fp8) {
      // The product that also sums the rows, where that is cheap, is another algorithm.
      const at::Tensor exact = plain.gradient.to(at::kDouble).t().matmul(given[0].to(at::kDouble));
      for (const Outcome* outcome : {&carried, &plain})
        REQUIRE(test::far(outcome->gradients[i], exact, at::kFloat, s.rows) == "");
    } else {
      REQUIRE(carried.gradients[i].equal(plain.gradients[i]));
    }
  }
  if (!fp8) return;
  const auto found = ops::quantize(plain.gradient, Fp8Format::e5m2, ops::Sides::both),
             known = ops::quantize(plain.gradient, Fp8Format::e5m2, ops::Sides::both,
                                   {.maxima = carried.found.maxima});
  REQUIRE(known.scale.equal(found.scale));
  REQUIRE(known.rows.view(at::kByte).equal(found.rows.view(at::kByte)));
  REQUIRE(known.columns.view(at::kByte).equal(found.columns.view(at::kByte)));
}

}  // namespace
}  // namespace dstrain
