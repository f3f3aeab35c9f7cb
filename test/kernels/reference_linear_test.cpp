#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "engine/base/philox.h"
#include "engine/kernels/activation/drop_draw.h"
#include "engine/kernels/activation/ops_layer_scale.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/linear/fp8.h"
#include "engine/kernels/ops.h"
#include "test/kernels/bounds.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/swiglu.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// The references of the kernels around products, against the operators on the CPU.
namespace dstrain {
namespace {

using kernels::DType;
using test::Bounded;
using test::far;

const float* in(const at::Tensor& tensor) { return tensor.const_data_ptr<float>(); }
float* out(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

TEST_CASE("the references of tanh and quick GELU agree with the operator", "[kernels][reference]") {
  const bool quick = GENERATE(false, true);
  const auto kind = quick ? ops::Gelu::quick : ops::Gelu::tanh;
  const auto kernel_kind = quick ? kernels::Gelu::quick : kernels::Gelu::tanh;
  test::Random random(1);
  const std::int64_t rows = 7, cols = 10;
  const at::Tensor z = test::leaf(random({rows, cols})), dy = random({rows, cols});
  Parameter bias = random.parameter({cols}, at::kFloat);
  const at::Tensor y = ops::bias_gelu(z, bias, kind);
  y.backward(dy);
  const at::Tensor y2 = at::empty_like(dy), dz = at::empty_like(dy), dbias = at::zeros({cols});
  kernels::reference::bias_gelu({.z = in(z),
                                 .bias = in(bias.value),
                                 .y = out(y2),
                                 .rows = rows,
                                 .cols = cols,
                                 .dtype = DType::f32,
                                 .kind = kernel_kind});
  kernels::reference::bias_gelu_backward({.z = in(z),
                                          .bias = in(bias.value),
                                          .grad_y = in(dy),
                                          .grad_z = out(dz),
                                          .grad_bias = out(dbias),
                                          .partial = nullptr,
                                          .rows = rows,
                                          .cols = cols,
                                          .dtype = DType::f32,
                                          .kind = kernel_kind});
  const Bounded shifted = Bounded(z) + bias.value, bound_dz = dy * test::gelu_slope(shifted, kind);
  for (const auto& got : {y2, y}) REQUIRE(far(got, test::gelu(shifted, kind)) == "");
  for (const auto& got : {dz, z.grad()}) REQUIRE(far(got, bound_dz) == "");
  for (const auto& got : {dbias, bias.gradient}) REQUIRE(far(got, test::row_sum(bound_dz)) == "");
}

TEST_CASE("the references of scaled columns agree with the operator", "[kernels][reference]") {
  test::Random random(3);
  const std::int64_t rows = 7, cols = 10;
  const at::Tensor x = test::leaf(random({rows, cols})), dy = random({rows, cols});
  Parameter scale = random.parameter({cols}, at::kFloat);
  const at::Tensor y = ops::scale_columns(x, scale);
  y.backward(dy);
  const at::Tensor y2 = at::empty_like(dy), dx = at::empty_like(dy), dscale = at::zeros({cols});
  kernels::reference::column_scale({.x = in(x),
                                    .scale = in(scale.value),
                                    .y = out(y2),
                                    .rows = rows,
                                    .cols = cols,
                                    .dtype = DType::f32});
  kernels::reference::column_scale_backward({.x = in(x),
                                             .scale = in(scale.value),
                                             .grad_y = in(dy),
                                             .grad_x = out(dx),
                                             .grad_scale = out(dscale),
                                             .partial = nullptr,
                                             .rows = rows,
                                             .cols = cols,
                                             .dtype = DType::f32});
  const Bounded bound_y = Bounded(x) * scale.value, bound_dx = Bounded(dy) * scale.value;
  for (const auto& got : {y2, y}) REQUIRE(far(got, rounded(bound_y)) == "");
  for (const auto& got : {dx, x.grad()}) REQUIRE(far(got, rounded(bound_dx)) == "");
  for (const auto& got : {dscale, scale.gradient})
    REQUIRE(far(got, test::row_sum(Bounded(dy) * x)) == "");
}

TEST_CASE("a frozen scale of columns keeps nothing, and its input has a gradient",
          "[kernels][reference]") {
  test::Random random(4);
  const at::Tensor x = test::leaf(random({3, 4})), dy = random({3, 4});
  Parameter scale = random.parameter({4}, at::kFloat);
  scale.trainable = false;
  scale.gradient = at::Tensor();
  ops::scale_columns(x, scale).backward(dy);
  REQUIRE(x.grad().equal(dy * scale.value));
}

TEST_CASE("the SwiGLU references agree with the operator", "[kernels][reference]") {
  test::Random random(2);
  const std::int64_t rows = 5, cols = 6;
  const at::Tensor gate_up = test::leaf(random({rows, 2 * cols})), dh = random({rows, cols});
  const at::Tensor h = test::swiglu(gate_up);
  h.backward(dh);
  const at::Tensor h2 = at::empty_like(dh), h3 = at::empty_like(dh),
                   grad = at::empty({rows, 2 * cols});
  kernels::reference::swiglu(
      {.gate_up = in(gate_up), .h = out(h2), .rows = rows, .cols = cols, .dtype = DType::f32});
  kernels::reference::swiglu_backward({.gate_up = in(gate_up),
                                       .grad_h = in(dh),
                                       .grad_gate_up = out(grad),
                                       .h = out(h3),
                                       .rows = rows,
                                       .cols = cols,
                                       .dtype = DType::f32});
  const Bounded both(gate_up), gate = narrowed(both, 1, 0, cols),
                               up = narrowed(both, 1, cols, cols);
  for (const auto& got : {h2, h}) REQUIRE(far(got, test::silu(gate) * up) == "");
  REQUIRE(h3.equal(h2));
  const Bounded bound = joined(dh * up * test::silu_slope(gate), dh * test::silu(gate), 1);
  for (const auto& got : {grad, gate_up.grad()}) REQUIRE(far(got, bound) == "");
}

TEST_CASE("the references of FP8 give the codes of ATen's conversion", "[kernels][reference]") {
  const auto format = GENERATE(kernels::Fp8Format::e4m3, kernels::Fp8Format::e5m2);
  test::Random random(3);
  const at::Tensor x = random({32, 48}) * 3;
  const auto expected = ops::quantize(x, format, ops::Sides::both);
  const at::Tensor partial = at::empty({kernels::kAbsMaxPartials}), scale = at::empty({}),
                   sums = at::empty({kernels::quantize_partials(32), 48}),
                   rows = at::empty_like(expected.rows), columns = at::empty_like(expected.columns);
  kernels::reference::abs_max(
      {.x = in(x), .partial = out(partial), .count = x.numel(), .dtype = DType::f32});
  const auto bytes = [](const at::Tensor& codes) {
    return static_cast<std::uint8_t*>(codes.mutable_data_ptr());
  };
  kernels::reference::quantize({.x = in(x),
                                .out = bytes(rows),
                                .out_t = bytes(columns),
                                .partial = in(partial),
                                .scale = out(scale),
                                .rows = 32,
                                .cols = 48,
                                .format = format,
                                .dtype = DType::f32,
                                .sums = out(sums)});
  REQUIRE(scale.equal(expected.scale));
  REQUIRE(sums.view({1, 48}).equal(x.to(at::kDouble).sum(0, true).to(at::kFloat)));
  REQUIRE(rows.view(at::kByte).equal(expected.rows.view(at::kByte)));
  REQUIRE(columns.view(at::kByte).equal(expected.columns.view(at::kByte)));
}

TEST_CASE("the references of SwiGLU in codes give the codes of its gradients",
          "[kernels][reference]") {
  test::Random random(8);
  const std::int64_t rows = 32, cols = 48;
  const at::Tensor gate_up = random({rows, 2 * cols}) * 2, dh = random({rows, cols}),
                   grad = at::empty({rows, 2 * cols}), h = at::empty({rows, cols}),
                   h2 = at::empty_like(h), h_maxima = at::empty({kernels::kAbsMaxPartials}),
                   maxima = at::empty_like(h_maxima), gains = at::empty_like(h_maxima),
                   scale = at::empty({});
  kernels::reference::swiglu_backward({.gate_up = in(gate_up),
                                       .grad_h = in(dh),
                                       .grad_gate_up = out(grad),
                                       .h = out(h),
                                       .rows = rows,
                                       .cols = cols,
                                       .dtype = DType::f32});
  kernels::reference::swiglu({.gate_up = in(gate_up),
                              .h = out(h2),
                              .rows = rows,
                              .cols = cols,
                              .dtype = DType::f32,
                              .partial = out(h_maxima),
                              .gains = out(gains)});
  REQUIRE(h2.equal(h));
  REQUIRE(h_maxima.max().equal(h.abs().max()));
  const at::Tensor bound = dh.abs().max() * gains.max();
  REQUIRE(bound.ge(grad.abs().max()).item<bool>());
  const auto expected =
                 ops::quantize(grad, kernels::Fp8Format::e5m2, ops::Sides::both, {.maxima = bound}),
             expected_h = ops::quantize(h, kernels::Fp8Format::e4m3, ops::Sides::columns,
                                        {.maxima = h_maxima});
  const at::Tensor by_rows = at::empty_like(expected.rows),
                   by_columns = at::empty_like(expected.columns),
                   h_codes = at::empty_like(expected_h.columns);
  kernels::reference::abs_max(
      {.x = in(dh), .partial = out(maxima), .count = dh.numel(), .dtype = DType::f32});
  kernels::reference::swiglu_codes({.gate_up = in(gate_up),
                                    .grad_h = in(dh),
                                    .maxima = in(maxima),
                                    .gains = in(gains),
                                    .scale = out(scale),
                                    .out = ops::code_bytes(by_rows),
                                    .out_t = ops::code_bytes(by_columns),
                                    .h_scale = in(expected_h.scale),
                                    .h_t = ops::code_bytes(h_codes),
                                    .rows = rows,
                                    .cols = cols,
                                    .dtype = DType::f32});
  REQUIRE(scale.equal(expected.scale));
  REQUIRE(by_rows.view(at::kByte).equal(expected.rows.view(at::kByte)));
  REQUIRE(by_columns.view(at::kByte).equal(expected.columns.view(at::kByte)));
  REQUIRE(h_codes.view(at::kByte).equal(expected_h.columns.view(at::kByte)));
}

TEST_CASE("the dropout reference reads half i % 8 of counter i / 8, and the mean stays",
          "[kernels][reference]") {
  const std::int64_t count = 103;
  const at::Tensor x = at::full({count}, 3, at::kFloat), y = at::empty_like(x);
  const std::int64_t seed = 77;
  kernels::reference::dropout({.x = in(x),
                               .y = out(y),
                               .count = count,
                               .seed = &seed,
                               .place = 5,
                               .share = 0.25f,
                               .dtype = DType::f32});
  for (std::int64_t i = 0; i < count; ++i) {
    const auto words = Philox::at<7>(dropout_key(77, 5), 0, static_cast<std::uint64_t>(i / 8));
    const std::uint32_t half = words.word[i % 8 / 2] >> (i % 2 * 16) & 0x7FFF;
    REQUIRE(in(y)[i] == (half >= 8192 ? 4.0f : 0.0f));
  }
  for (const float share : {1e-9f, 0.05f, 0.1f, 0.5f, 0.999999f}) {
    const auto draw = kernels::DropDraw::of(share);
    CHECK(draw.dropped >= 1);
    CHECK(draw.dropped <= 32767);
    CHECK(draw.factor * static_cast<float>(32768 - draw.dropped) == Approx(32768));
    CHECK(static_cast<double>(draw.dropped) / 32768 == Approx(share).margin(1.0 / 32768));
  }
}

TEST_CASE("the vocabulary loss references agree with the operator", "[kernels][reference]") {
  test::Random random(4);
  const std::int64_t rows = 6, classes = 11, stride = 16;
  const at::Tensor labels = (random({rows}).abs() * 100).to(at::kLong).remainder(classes),
                   weights = random({rows}).gt(-0.7).to(at::kFloat), totals = at::zeros({4});
  Parameter table;  // the identity: logits are the input
  table.shape = {classes, classes};
  table.value = at::zeros({classes, classes}).fill_diagonal_(1);
  table.trainable = false;
  const at::Tensor x = test::leaf(random({rows, classes}));
  (ops::linear_cross_entropy(x, table, labels, weights, totals) * 3).backward();

  const at::Tensor logits = at::full({rows, stride}, 8, at::kFloat);
  logits.narrow(1, 0, classes).copy_(x.detach());
  const at::Tensor loss = at::empty({rows}), top1 = at::empty({rows}),
                   grad_loss = at::full({1}, 3, at::kFloat), totals2 = at::full({4}, 5, at::kFloat),
                   sum = at::empty({1});
  kernels::reference::vocab_loss({.logits = out(logits),
                                  .labels = labels.const_data_ptr<std::int64_t>(),
                                  .weights = in(weights),
                                  .grad_loss = in(grad_loss),
                                  .loss = out(loss),
                                  .top1 = out(top1),
                                  .rows = rows,
                                  .classes = classes,
                                  .stride = stride,
                                  .dtype = DType::f32});
  kernels::reference::vocab_totals({.loss = in(loss),
                                    .top1 = in(top1),
                                    .weights = in(weights),
                                    .loss_sum = out(sum),
                                    .totals = out(totals2),
                                    .rows = rows});
  const test::LossBounds bounds = test::cross_entropy(x, labels, weights, 0, 3);
  for (const auto& got : {sum[0], totals[0]}) REQUIRE(far(got, bounds.loss) == "");
  REQUIRE(far(totals2[0], bounds.loss + at::full({}, 5, at::kFloat)) == "");
  REQUIRE((totals2 - 5).narrow(0, 1, 3).equal(totals.narrow(0, 1, 3)));  // counts
  REQUIRE(far(logits.narrow(1, 0, classes), bounds.dlogits) == "");
  const at::Tensor identity = table.value;
  REQUIRE(far(x.grad(), test::input_gradient(bounds.dlogits, identity, at::kFloat)) == "");
  REQUIRE(logits.narrow(1, classes, stride - classes).eq(8).all().item<bool>());
}

}  // namespace
}  // namespace dstrain
