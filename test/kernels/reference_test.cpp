#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "engine/kernels/control.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/optimizer.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

/// The references are what the GPU is measured against; here they are measured against the
/// operators on the CPU.
namespace dstrain {
namespace {

using kernels::DType;
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
                   dbias = at::zeros({dim});
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
                                      .dtype = DType::f32});
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
  REQUIRE(far(sum2, sum, at::kFloat, 1) == "");
  REQUIRE(far(y2, y, at::kFloat, dim) == "");
  REQUIRE(far(dx, x.grad(), at::kFloat, dim) == "");
  REQUIRE(far(dweight, weight.gradient, at::kFloat, rows) == "");
  REQUIRE(far(dbias, bias.gradient, at::kFloat, rows) == "");
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
  REQUIRE(far(y2, y, at::kFloat, 4) == "");
  REQUIRE(far(dz.t().mm(x), weight.gradient, at::kFloat, rows) == "");
  REQUIRE(far(dbias, bias.gradient, at::kFloat, rows) == "");
  REQUIRE(far(sum, dz.sum(0) + 3, at::kFloat, rows) == "");
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
  const at::Tensor y = ops::embed_sequence(x, 2, token, positions);
  y.backward(dy);
  const at::Tensor y2 = at::empty({8, 8}), dx = at::empty({6, 8}), dtoken = at::zeros({8}),
                   dpositions = at::zeros({4, 8});
  kernels::reference::embed_sequence({.patches = fp32(x),
                                      .class_token = fp32(token.value),
                                      .positions = fp32(positions.value),
                                      .out = fp32_out(y2),
                                      .batch = 2,
                                      .tokens = 4,
                                      .dim = 8,
                                      .dtype = DType::f32});
  kernels::reference::embed_sequence_backward({.grad_out = fp32(dy),
                                               .grad_patches = fp32_out(dx),
                                               .grad_class_token = fp32_out(dtoken),
                                               .grad_positions = fp32_out(dpositions),
                                               .batch = 2,
                                               .tokens = 4,
                                               .dim = 8,
                                               .dtype = DType::f32});
  REQUIRE(y2.equal(y));
  REQUIRE(dx.equal(x.grad()));
  REQUIRE(far(dtoken, token.gradient, at::kFloat, 2) == "");
  REQUIRE(far(dpositions, positions.gradient, at::kFloat, 2) == "");
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
  REQUIRE(far(loss2, loss.view({1}), at::kFloat, batch * classes) == "");
  REQUIRE(far(totals2, totals, at::kFloat, batch * classes) == "");
  REQUIRE(far(grad, logits.grad(), at::kFloat, classes) == "");
}

TEST_CASE("the optimizer references agree with the CPU's loops", "[kernels][reference]") {
  test::Random random(5);
  const std::int64_t count = 1001;
  const at::Tensor control = at::zeros({optimizer::kControlSize});
  control[optimizer::kLossScale] = 2;
  optimizer::finish_gradients(control, at::full({1}, 16, at::kFloat), {.clip_norm = 1});
  optimizer::AdamW adam{.master = random({count}),
                        .exp_avg = random({count}),
                        .exp_avg_sq = random({count}).abs(),
                        .gradient = random({count}),
                        .compute = {},
                        .lr = 0.1,
                        .weight_decay = 0.1};
  const at::Tensor master = adam.master.clone(), average = adam.exp_avg.clone(),
                   square = adam.exp_avg_sq.clone();
  optimizer::adamw(adam, control);
  kernels::reference::adamw({.master = fp32_out(master),
                             .exp_avg = fp32_out(average),
                             .exp_avg_sq = fp32_out(square),
                             .gradient = fp32(adam.gradient),
                             .compute = nullptr,
                             .control = fp32(control),
                             .count = count,
                             .lr = 0.1,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .dtype = DType::f32});
  REQUIRE(far(adam.master, master, at::kFloat, 8) == "");
  REQUIRE(far(adam.exp_avg, average, at::kFloat, 8) == "");
  REQUIRE(far(adam.exp_avg_sq, square, at::kFloat, 8) == "");

  optimizer::Sgd descent{.master = master,
                         .momentum_buffer = average,
                         .gradient = adam.gradient,
                         .compute = {},
                         .lr = 0.1,
                         .weight_decay = 0.1};
  const at::Tensor master2 = master.clone(), buffer2 = average.clone();
  optimizer::sgd(descent, control);
  kernels::reference::sgd({.master = fp32_out(master2),
                           .momentum_buffer = fp32_out(buffer2),
                           .gradient = fp32(adam.gradient),
                           .compute = nullptr,
                           .control = fp32(control),
                           .count = count,
                           .lr = 0.1,
                           .momentum = 0.9,
                           .weight_decay = 0.1,
                           .dtype = DType::f32});
  REQUIRE(far(master, master2, at::kFloat, 8) == "");
  REQUIRE(far(average, buffer2, at::kFloat, 8) == "");

  const at::Tensor sum = at::zeros({1}), sum2 = at::zeros({1});
  optimizer::add_squares(adam.gradient, 0.5, sum);
  kernels::reference::add_squares({.x = fp32(adam.gradient),
                                   .partial = nullptr,
                                   .sum = fp32_out(sum2),
                                   .count = count,
                                   .factor = 0.5f});
  REQUIRE(far(sum, sum2, at::kFloat, 1) == "");
}

}  // namespace
}  // namespace dstrain
