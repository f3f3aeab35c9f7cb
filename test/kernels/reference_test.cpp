#include "test/kernels/reference/reference.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "engine/kernels/kernels.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/optimizer/control.h"
#include "engine/kernels/optimizer/optimizer.h"
#include "engine/kernels/optimizer/optimizer_update.h"
#include "test/kernels/bounds.h"
#include "test/kernels/optimizer_bounds.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// The references are what the GPU is measured against; here they are measured against the
/// operators on the CPU.
namespace dstrain {
namespace {

using kernels::DType;
using test::Bounded;
using test::far;

const float* fp32(const at::Tensor& tensor) { return tensor.const_data_ptr<float>(); }
float* fp32_out(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

TEST_CASE("the layer norm references agree with the operator", "[kernels][reference]") {
  test::Random random(1);
  const std::int64_t rows = 5, dim = 12;
  const at::Tensor x = test::leaf(random({rows, dim})), delta = random({rows, dim});
  const at::Tensor dsum = random({rows, dim}), dy = random({rows, dim});
  Parameter weight = random.parameter({dim}, at::kFloat),
            bias = random.parameter({dim}, at::kFloat);
  const auto [sum, y] = ops::add_layer_norm(x, delta, weight, bias, 1e-5);
  ((sum * dsum).sum() + (y * dy).sum()).backward();

  const at::Tensor sum2 = at::empty({rows, dim}), y2 = at::empty({rows, dim}),
                   dx = at::empty({rows, dim});
  const at::Tensor mean = at::empty({rows}), rstd = at::empty({rows}), dweight = at::zeros({dim}),
                   dbias = at::zeros({dim}), maxima = at::empty({kernels::norm_maxima(rows, dim)});
  kernels::reference::add_layer_norm({.x = fp32(x),
                                      .delta = fp32(delta),
                                      .weight = fp32(weight.value),
                                      .bias = fp32(bias.value),
                                      .sum = fp32_out(sum2),
                                      .y = fp32_out(y2),
                                      .mean = fp32_out(mean),
                                      .rstd = fp32_out(rstd),
                                      .rows = rows,
                                      .dim = dim,
                                      .eps = 1e-5f,
                                      .dtype = DType::f32,
                                      .maxima = fp32_out(maxima)});
  REQUIRE(maxima.max().equal(y2.abs().max()));
  kernels::reference::add_layer_norm_backward({.sum = fp32(sum2),
                                               .weight = fp32(weight.value),
                                               .grad_y = fp32(dy),
                                               .grad_sum = fp32(dsum),
                                               .mean = fp32(mean),
                                               .rstd = fp32(rstd),
                                               .grad_x = fp32_out(dx),
                                               .grad_weight = fp32_out(dweight),
                                               .grad_bias = fp32_out(dbias),
                                               .partial = nullptr,
                                               .rows = rows,
                                               .dim = dim,
                                               .dtype = DType::f32});
  const test::NormBounds norm =
      test::layer_norm(Bounded(x) + delta, weight.value, bias.value, 1e-5, dy, at::kFloat);
  REQUIRE(sum2.equal(sum));
  for (const auto& got : {y2, y}) REQUIRE(far(got, norm.y) == "");
  for (const auto& got : {dx, x.grad()}) REQUIRE(far(got, norm.dx + dsum) == "");
  for (const auto& got : {dweight, weight.gradient}) REQUIRE(far(got, norm.dweight) == "");
  for (const auto& got : {dbias, bias.gradient}) REQUIRE(far(got, test::row_sum(dy)) == "");
}

TEST_CASE("the GELU and column sum references agree with the operator", "[kernels][reference]") {
  test::Random random(2);
  const std::int64_t rows = 7, cols = 10;
  const at::Tensor x = random({rows, 4}), dy = random({rows, cols});
  Parameter weight = random.parameter({cols, 4}, at::kFloat),
            bias = random.parameter({cols}, at::kFloat);
  const at::Tensor y = ops::linear_gelu(x, weight, bias, ops::Gelu::erf);
  y.backward(dy);
  const at::Tensor z = x.mm(weight.value.t()).contiguous(), y2 = at::empty_like(z),
                   dz = at::empty_like(z);
  const at::Tensor dbias = at::zeros({cols}), sum = at::full({cols}, 3, at::kFloat);
  kernels::reference::bias_gelu({.z = fp32(z),
                                 .bias = fp32(bias.value),
                                 .y = fp32_out(y2),
                                 .rows = rows,
                                 .cols = cols,
                                 .dtype = DType::f32});
  kernels::reference::bias_gelu_backward({.z = fp32(z),
                                          .bias = fp32(bias.value),
                                          .grad_y = fp32(dy),
                                          .grad_z = fp32_out(dz),
                                          .grad_bias = fp32_out(dbias),
                                          .partial = nullptr,
                                          .rows = rows,
                                          .cols = cols,
                                          .dtype = DType::f32});
  kernels::reference::column_sum({.x = fp32(dz),
                                  .sum = fp32_out(sum),
                                  .partial = nullptr,
                                  .rows = rows,
                                  .cols = cols,
                                  .dtype = DType::f32});
  const Bounded bound_z = test::times(x, weight.value, at::kFloat) + bias.value,
                bound_dz = dy * test::gelu_slope(bound_z, ops::Gelu::erf);
  for (const auto& got : {y2, y}) REQUIRE(far(got, test::gelu(bound_z, ops::Gelu::erf)) == "");
  REQUIRE(far(dz, bound_dz) == "");
  REQUIRE(far(weight.gradient, test::weight_gradient(bound_dz, x)) == "");
  for (const auto& got : {dbias, bias.gradient}) REQUIRE(far(got, test::row_sum(bound_dz)) == "");
  REQUIRE(far(sum, test::row_sum(dz) + at::full({cols}, 3, at::kFloat)) == "");
}

TEST_CASE("the sequence references agree with the operators", "[kernels][reference]") {
  test::Random random(3);
  const at::Tensor images = random({2, 3, 4, 6}), patches = at::empty({2 * 2 * 3, 3 * 2 * 2});
  kernels::reference::patchify({.images = fp32(images),
                                .patches = fp32_out(patches),
                                .batch = 2,
                                .channels = 3,
                                .height = 4,
                                .width = 6,
                                .patch = 2,
                                .dtype = DType::f32});
  REQUIRE(patches.equal(ops::patchify(images, 2)));

  const at::Tensor x = test::leaf(random({6, 8})), dy = random({8, 8});
  Parameter token = random.parameter({8}, at::kFloat),
            positions = random.parameter({4, 8}, at::kFloat);
  const at::Tensor y = ops::embed_sequence(x, 2, &token, positions);
  y.backward(dy);
  const at::Tensor y2 = at::empty({8, 8}), dx = at::empty({6, 8}), dtoken = at::zeros({8}),
                   dpositions = at::zeros({4, 8});
  kernels::reference::embed_sequence({.patches = fp32(x),
                                      .first_tokens = fp32(token.value),
                                      .positions = fp32(positions.value),
                                      .out = fp32_out(y2),
                                      .batch = 2,
                                      .tokens = 4,
                                      .dim = 8,
                                      .dtype = DType::f32});
  kernels::reference::embed_sequence_backward({.grad_out = fp32(dy),
                                               .grad_patches = fp32_out(dx),
                                               .grad_first_tokens = fp32_out(dtoken),
                                               .grad_positions = fp32_out(dpositions),
                                               .batch = 2,
                                               .tokens = 4,
                                               .dim = 8,
                                               .dtype = DType::f32});
  REQUIRE(y2.equal(y));
  REQUIRE(dx.equal(x.grad()));
  // Sums of two numbers and a zero: one rounding, the same everywhere.
  REQUIRE(dtoken.equal(token.gradient));
  REQUIRE(dpositions.equal(positions.gradient));
}

TEST_CASE("the cross entropy references agree with the operator", "[kernels][reference]") {
  test::Random random(4);
  const std::int64_t batch = 5, classes = 7;
  const at::Tensor logits = test::leaf(random({batch, classes})),
                   weights = random({batch}).gt(-0.5).to(at::kFloat);
  const at::Tensor labels = random({batch}).abs().mul(2).floor().to(at::kLong),
                   totals = at::zeros({4});
  const at::Tensor loss = ops::softmax_cross_entropy(logits, labels, weights, 0.1, totals);
  loss.backward();
  const at::Tensor totals2 = at::zeros({4}), loss2 = at::empty({1}), lse = at::empty({batch});
  const at::Tensor one = at::full({1}, 1, at::kFloat), grad = at::empty({batch, classes});
  kernels::reference::cross_entropy({.logits = fp32(logits),
                                     .labels = labels.const_data_ptr<std::int64_t>(),
                                     .weights = fp32(weights),
                                     .log_sum_exp = fp32_out(lse),
                                     .rows = nullptr,
                                     .loss = fp32_out(loss2),
                                     .totals = fp32_out(totals2),
                                     .batch = batch,
                                     .classes = classes,
                                     .smoothing = 0.1f,
                                     .dtype = DType::f32});
  kernels::reference::cross_entropy_backward({.logits = fp32(logits),
                                              .labels = labels.const_data_ptr<std::int64_t>(),
                                              .weights = fp32(weights),
                                              .log_sum_exp = fp32(lse),
                                              .grad_loss = fp32(one),
                                              .grad_logits = fp32_out(grad),
                                              .batch = batch,
                                              .classes = classes,
                                              .smoothing = 0.1f,
                                              .dtype = DType::f32});
  const test::LossBounds bounds = test::cross_entropy(logits, labels, weights, 0.1, 1);
  for (const auto& got : {loss2[0], totals2[0], loss, totals[0]})
    REQUIRE(far(got, bounds.loss) == "");
  REQUIRE(totals2.narrow(0, 1, 3).equal(totals.narrow(0, 1, 3)));  // counts
  for (const auto& got : {grad, logits.grad()}) REQUIRE(far(got, bounds.dlogits) == "");
}

TEST_CASE("the optimizer references agree with the CPU's loops", "[kernels][reference]") {
  test::Random random(5);
  const std::int64_t count = 1001;
  const at::Tensor control = at::zeros({optimizer::kControlSize});
  control[optimizer::kLossScale] = 2;
  optimizer::finish_gradients(control, at::full({1}, 16, at::kFloat), {.clip_norm = 1});
  const float factor = control[optimizer::kGradientFactor].item<float>();
  const at::Tensor raw = random({count});
  const Bounded gradient = Bounded(raw) * at::full({1}, factor, at::kDouble);
  // One step of a rule by the CPU's loop and by the reference; `bounds` has what is allowed of the
  // master weights and the moments.
  const auto check = [&](const optimizer::Rule& rule, const std::vector<at::Tensor>& start,
                         const std::vector<Bounded>& bounds) {
    std::vector<at::Tensor> ours, reference;
    for (const at::Tensor& state : start) {
      ours.push_back(state.clone());
      reference.push_back(state.clone());
    }
    optimizer::update({.master = ours[0],
                       .moments = {ours.begin() + 1, ours.end()},
                       .gradient = raw,
                       .compute = {},
                       .rule = rule},
                      control);
    kernels::OptimizerUpdate args{.states = DType::f32,
                                  .parameters = fp32_out(reference[0]),
                                  .moments = {},
                                  .gradient = fp32(raw),
                                  .compute = nullptr,
                                  .compute_type = DType::f32,
                                  .control = fp32(control),
                                  .count = count,
                                  .rule = rule,
                                  .seed = 0,
                                  .first_element = 0};
    for (std::size_t m = 1; m < start.size(); ++m) args.moments[m - 1] = fp32_out(reference[m]);
    kernels::reference::update(args);
    for (std::size_t i = 0; i < start.size(); ++i) {
      CAPTURE(i);
      for (const auto& got : {ours[i], reference[i]}) REQUIRE(far(got, bounds[i]) == "");
    }
  };
  const at::Tensor master = random({count}), average = random({count}),
                   square = random({count}).abs();
  test::AdamBounds adam{master, average, square};
  adam.step(gradient, 1, 0.1, 0.9, 0.999, 1e-8, 0.1);
  check(optimizer::AdamW{.lr = 0.1, .weight_decay = 0.1}, {master, average, square},
        {adam.master, adam.average, adam.square});
  test::SgdBounds descent{master, average};
  descent.step(gradient, 0.1, 0.9, 0.1);
  check(optimizer::Sgd{.lr = 0.1, .weight_decay = 0.1}, {master, average},
        {descent.master, descent.momentum});
  descent = {master, average};
  descent.step(gradient, 0.1, 0.9, 0.1, /*nesterov=*/true);
  check(optimizer::Sgd{.lr = 0.1, .weight_decay = 0.1, .nesterov = true}, {master, average},
        {descent.master, descent.momentum});
  test::RmspropBounds rmsprop{master, square, average, /*tensorflow=*/false};
  rmsprop.step(gradient, 0.1, 0.99, 0.9, 1e-3, 0.1);
  check(optimizer::Rmsprop{.lr = 0.1, .eps = 1e-3, .weight_decay = 0.1}, {master, square, average},
        {rmsprop.master, rmsprop.square, rmsprop.momentum});
  rmsprop = {master, square, average, /*tensorflow=*/true};
  rmsprop.step(gradient, 0.1, 0.9, 0.9, 1e-3, 0.1);
  check(optimizer::RmspropTensorflow{.lr = 0.1, .eps = 1e-3, .weight_decay = 0.1},
        {master, square, average}, {rmsprop.master, rmsprop.square, rmsprop.momentum});
  test::LionBounds lion{master, average};
  lion.step(gradient, 0.1, 0.9, 0.99, 0.1);
  check(optimizer::Lion{.lr = 0.1, .weight_decay = 0.1}, {master, average},
        {lion.master, lion.average});

  const at::Tensor sum = at::zeros({1}), sum2 = at::zeros({1});
  optimizer::add_squares(raw, 0.5, sum);
  kernels::reference::add_squares(
      {.x = fp32(raw), .partial = nullptr, .sum = fp32_out(sum2), .count = count, .factor = 0.5f});
  // Squares are summed in double: only the result is rounded.
  const at::Tensor squares = raw.to(at::kDouble).pow(2).sum().view({1}) * 0.5;
  for (const auto& got : {sum, sum2}) REQUIRE(far(got, rounded(Bounded(squares))) == "");
}

}  // namespace
}  // namespace dstrain
