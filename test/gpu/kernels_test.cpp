#include "engine/kernels/kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/optimizer/control.h"
#include "engine/kernels/optimizer/matrix_update.h"
#include "engine/kernels/optimizer/optimizer_update.h"
#include "test/gpu/compare.h"
#include "test/kernels/non_finite_rows.h"
#include "test/kernels/optimizer_control.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

/// Every kernel against its reference.
namespace dstrain {
namespace {

using kernels::DType;
using namespace test;

TEST_CASE("GPU: layer norm equals its reference", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t rows = GENERATE(1, 7, 197 * 3, 4001);
  const std::int64_t dim = GENERATE(64, 192, 768, 1000, 1280, 2048);
  const bool residual = GENERATE(false, true);
  CAPTURE(c10::toString(type), rows, dim, residual);
  test::Random random(1);
  const at::Tensor partial = at::empty({kernels::norm_partials(rows), 2, dim},
                                       at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  const at::Tensor x = random({rows, dim}, type), weight = random({dim}, type),
                   bias = random({dim}, type);
  compare(
      {x, random({rows, dim}, type), weight, bias, x, x, at::empty({rows}), at::empty({rows})}, 4,
      dim,
      [&](const Tensors& t) {
        return kernels::AddLayerNorm{.x = in(t[0]),
                                     .delta = residual ? in(t[1]) : nullptr,
                                     .weight = in(t[2]),
                                     .bias = in(t[3]),
                                     .sum = residual ? out(t[4]) : nullptr,
                                     .y = out(t[5]),
                                     .mean = fp32(t[6]),
                                     .rstd = fp32(t[7]),
                                     .rows = rows,
                                     .dim = dim,
                                     .eps = 1e-6f,
                                     .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::add_layer_norm, kernels::reference::add_layer_norm);
  const at::Tensor mean = x.to(at::kFloat).mean(1),
                   rstd = (x.to(at::kFloat).var(1, false) + 1e-6).rsqrt();
  compare(
      {x, weight, random({rows, dim}, type), random({rows, dim}, type), mean, rstd, x,
       random({dim}), random({dim})},
      6, std::max(rows, dim),
      [&](const Tensors& t) {
        return kernels::AddLayerNormBackward{.sum = in(t[0]),
                                             .weight = in(t[1]),
                                             .grad_y = in(t[2]),
                                             .grad_sum = residual ? in(t[3]) : nullptr,
                                             .mean = fp32(t[4]),
                                             .rstd = fp32(t[5]),
                                             .grad_x = out(t[6]),
                                             .grad_weight = fp32(t[7]),
                                             .grad_bias = fp32(t[8]),
                                             .partial = fp32(partial),
                                             .rows = rows,
                                             .dim = dim,
                                             .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::add_layer_norm_backward, kernels::reference::add_layer_norm_backward);
}

TEST_CASE("GPU: bias GELU and column sum equal their references", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t rows = GENERATE(1, 7, 197 * 3, 4001);
  const std::int64_t cols = GENERATE(8, 10, 64, 333, 1000, 3072);
  CAPTURE(c10::toString(type), rows, cols);
  test::Random random(2);
  const at::Tensor partial = at::empty({kernels::column_partials(rows, cols), cols},
                                       at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  const at::Tensor z = random({rows, cols}, type), bias = random({cols}, type),
                   grad = random({rows, cols}, type);
  compare(
      {z, bias, z}, 2, 8,
      [&](const Tensors& t) {
        return kernels::BiasGelu{.z = in(t[0]),
                                 .bias = in(t[1]),
                                 .y = out(t[2]),
                                 .rows = rows,
                                 .cols = cols,
                                 .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::bias_gelu, kernels::reference::bias_gelu);
  compare(
      {z, bias, grad, z, random({cols})}, 3, std::max<std::int64_t>(rows, 8),
      [&](const Tensors& t) {
        return kernels::BiasGeluBackward{.z = in(t[0]),
                                         .bias = in(t[1]),
                                         .grad_y = in(t[2]),
                                         .grad_z = out(t[3]),
                                         .grad_bias = fp32(t[4]),
                                         .partial = fp32(partial),
                                         .rows = rows,
                                         .cols = cols,
                                         .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::bias_gelu_backward, kernels::reference::bias_gelu_backward);
  compare(
      {grad, random({cols})}, 1, rows,
      [&](const Tensors& t) {
        return kernels::ColumnSum{.x = in(t[0]),
                                  .sum = fp32(t[1]),
                                  .partial = fp32(partial),
                                  .rows = rows,
                                  .cols = cols,
                                  .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::column_sum, kernels::reference::column_sum);
}

TEST_CASE("GPU: patchify and embed_sequence equal their references", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  test::Random random(3);
  for (const std::int64_t patch : {3, 14, 16}) {
    const std::int64_t height = 2 * patch, width = 3 * patch;
    const at::Tensor images = random({5, 3, height, width}, type);
    compare(
        {images, images}, 1, 1,
        [&](const Tensors& t) {
          return kernels::Patchify{.images = in(t[0]),
                                   .patches = out(t[1]),
                                   .batch = 5,
                                   .channels = 3,
                                   .height = height,
                                   .width = width,
                                   .patch = patch,
                                   .dtype = ops::kernel_dtype(t[0])};
        },
        kernels::cuda::patchify, kernels::reference::patchify);
  }
  const std::int64_t batch = GENERATE(1, 9), tokens = 197, dim = GENERATE(64, 768),
                     first = GENERATE(0, 1, 2);
  const at::Tensor patches = random({batch, tokens - first, dim}, type),
                   rows = random({batch, tokens, dim}, type);
  const at::Tensor positions = random({tokens, dim}, type);
  compare(
      {patches, random({first, dim}, type), positions, rows}, 3, 1,
      [&](const Tensors& t) {
        return kernels::EmbedSequence{.patches = in(t[0]),
                                      .first_tokens = in(t[1]),
                                      .positions = in(t[2]),
                                      .out = out(t[3]),
                                      .batch = batch,
                                      .tokens = tokens,
                                      .dim = dim,
                                      .dtype = ops::kernel_dtype(t[0]),
                                      .first = first};
      },
      kernels::cuda::embed_sequence, kernels::reference::embed_sequence);
  compare(
      {rows, patches, random({first, dim}), random({tokens, dim})}, 1, batch,
      [&](const Tensors& t) {
        return kernels::EmbedSequenceBackward{.grad_out = in(t[0]),
                                              .grad_patches = out(t[1]),
                                              .grad_first_tokens = fp32(t[2]),
                                              .grad_positions = fp32(t[3]),
                                              .batch = batch,
                                              .tokens = tokens,
                                              .dim = dim,
                                              .dtype = ops::kernel_dtype(t[0]),
                                              .first = first};
      },
      kernels::cuda::embed_sequence_backward, kernels::reference::embed_sequence_backward);
}

TEST_CASE("GPU: cross entropy equals its reference", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t batch = GENERATE(1, 300), classes = GENERATE(2, 10, 1000, 21843);
  const float smoothing = GENERATE(0.0f, 0.1f);
  const bool mixed = GENERATE(false, true);
  CAPTURE(c10::toString(type), batch, classes, smoothing, mixed);
  test::Random random(4);
  const at::Tensor logits = random({batch, classes}, type),
                   weights = random({batch}).gt(-1).to(at::kFloat);
  const at::Tensor labels = (random({batch}).abs() * 100).to(at::kLong).remainder(classes);
  const at::Tensor second = (labels * 7 + 1).remainder(classes), shares = random({batch}).sigmoid();
  const at::Tensor gpu_second = second.to(at::kCUDA), gpu_shares = shares.to(at::kCUDA);
  const auto second_of = [&](const Tensors& t) -> const std::int64_t* {
    if (!mixed) return nullptr;
    return (t[0].is_cuda() ? gpu_second : second).const_data_ptr<std::int64_t>();
  };
  const auto shares_of = [&](const Tensors& t) -> const float* {
    if (!mixed) return nullptr;
    return (t[0].is_cuda() ? gpu_shares : shares).const_data_ptr<float>();
  };
  const at::Tensor scratch = at::empty({4, batch}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  compare(
      {logits, labels, weights, at::zeros({batch}), at::zeros({1}), random({4})}, 3,
      batch + classes,
      [&](const Tensors& t) {
        return kernels::CrossEntropy{.logits = in(t[0]),
                                     .labels = t[1].const_data_ptr<std::int64_t>(),
                                     .weights = fp32(t[2]),
                                     .log_sum_exp = fp32(t[3]),
                                     .rows = fp32(scratch),
                                     .loss = fp32(t[4]),
                                     .totals = fp32(t[5]),
                                     .batch = batch,
                                     .classes = classes,
                                     .smoothing = smoothing,
                                     .dtype = ops::kernel_dtype(t[0]),
                                     .second_labels = second_of(t),
                                     .shares = shares_of(t)};
      },
      kernels::cuda::cross_entropy, kernels::reference::cross_entropy);
  compare(
      {logits, labels, weights, logits.to(at::kFloat).logsumexp(1), at::full({1}, 3, at::kFloat),
       logits},
      5, classes,
      [&](const Tensors& t) {
        return kernels::CrossEntropyBackward{.logits = in(t[0]),
                                             .labels = t[1].const_data_ptr<std::int64_t>(),
                                             .weights = fp32(t[2]),
                                             .log_sum_exp = fp32(t[3]),
                                             .grad_loss = fp32(t[4]),
                                             .grad_logits = out(t[5]),
                                             .batch = batch,
                                             .classes = classes,
                                             .smoothing = smoothing,
                                             .dtype = ops::kernel_dtype(t[0]),
                                             .second_labels = second_of(t),
                                             .shares = shares_of(t)};
      },
      kernels::cuda::cross_entropy_backward, kernels::reference::cross_entropy_backward);
}

TEST_CASE("GPU: a row whose loss is not finite never counts as right", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t classes = GENERATE(5, 16, 1003, 8200);
  CAPTURE(c10::toString(type), classes);
  test::require_none_counts(at::kCUDA, type, classes);
}

TEST_CASE("GPU: the optimizer equals its references, aligned or not", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t count = GENERATE(1, 1003, 3000000);
  const std::int64_t offset = GENERATE(0, 1);
  const float skip = GENERATE(0.0f, 1.0f);
  CAPTURE(c10::toString(type), count, offset, skip);
  test::Random random(5);
  const at::Tensor control = test::control_at(3, 0.5f, skip);
  const std::int64_t size = count + offset;
  const at::Tensor gradient = random({size}), master = random({size}), average = random({size}),
                   square = average.pow(2);
  for (const optimizer::Rule& rule :
       {optimizer::Rule(optimizer::AdamW{.lr = 1e-2, .weight_decay = 0.1}),
        optimizer::Rule(optimizer::Sgd{.lr = 1e-2, .weight_decay = 0.1}),
        optimizer::Rule(optimizer::Lion{.lr = 1e-2, .weight_decay = 0.1}),
        optimizer::Rule(optimizer::MuonStep{.step = 1e-2, .shrink = 1e-3})}) {
    CAPTURE(rule.index());
    compare(
        {gradient, control, master, average, square, master.to(type)}, 2, 8,
        [&](const Tensors& t) {
          return kernels::OptimizerUpdate{
              .states = kernels::DType::f32,
              .parameters = fp32(t[2]) + offset,
              .moments = {fp32(t[3]) + offset, fp32(t[4]) + offset},
              .gradient = fp32(t[0]) + offset,
              .compute = static_cast<char*>(out(t[5])) +
                         static_cast<std::size_t>(offset) * t[5].element_size(),
              .compute_type = ops::kernel_dtype(t[5]),
              .control = fp32(t[1]),
              .count = count,
              .rule = rule,
              .seed = 0,
              .first_element = 0};
        },
        kernels::cuda::update, kernels::reference::update);
  }
  const at::Tensor partial =
      at::empty({kernels::kSquarePartials}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  const at::ScalarType held = type == at::kBFloat16 ? type : at::kFloat;
  compare(
      {gradient.to(held), at::full({1}, 2, at::kFloat)}, 1, 100,
      [&](const Tensors& t) {
        return kernels::AddSquares{.x = static_cast<const char*>(in(t[0])) +
                                        static_cast<std::size_t>(offset) * t[0].element_size(),
                                   .type = ops::kernel_dtype(t[0]),
                                   .partial = fp32(partial),
                                   .sum = fp32(t[1]),
                                   .count = count,
                                   .factor = 0.5f};
      },
      kernels::cuda::add_squares, kernels::reference::add_squares);
}

TEST_CASE("GPU: finish_gradients decides as its reference", "[gpu][kernels]") {
  const float sum = GENERATE(0.0f, 4.0f, 1e6f, std::numeric_limits<float>::infinity());
  const bool dynamic = GENERATE(false, true);
  const float scale = GENERATE(1.0f, 1024.0f, 16777216.0f), good = GENERATE(0.0f, 2.0f);
  const float tolerated = GENERATE(0.0f, 1.0f);
  const bool consecutive = GENERATE(false, true);
  CAPTURE(sum, dynamic, scale, good, tolerated, consecutive);
  const at::Tensor control = at::zeros({optimizer::kControlSize});
  control[optimizer::kLossScale] = scale;
  control[optimizer::kGoodSteps] = good;
  control[optimizer::kToleratedSteps] = tolerated;
  const at::Tensor expected = control.clone(), sums = at::full({1}, sum, at::kFloat);
  const auto args = [&](const at::Tensor& state, const at::Tensor& squares) {
    return kernels::FinishGradients{.control = fp32(state),
                                    .sum = fp32(squares),
                                    .clip_norm = 1,
                                    .loss_scaling = {.dynamic = dynamic,
                                                     .growth_interval = 3,
                                                     .hysteresis = 2,
                                                     .consecutive = consecutive,
                                                     .minimum = 0.5f},
                                    .beta1 = 0.9,
                                    .beta2 = 0.999};
  };
  kernels::reference::finish_gradients(args(expected, sums));
  const at::Tensor state = control.to(at::kCUDA);
  kernels::cuda::finish_gradients(args(state, sums.to(at::kCUDA)), ops::current_stream());
  for (std::int64_t i = 0; i < optimizer::kControlSize; ++i) {
    CAPTURE(i);
    const float got = state[i].item<float>(), wanted = expected[i].item<float>();
    REQUIRE((got == wanted || got == Approx(wanted)));
    if (i >= optimizer::kCorrection1) REQUIRE(got == wanted);
  }
}

/// What an operator gives and adds on one device, in a fixed order.
template <typename Operator>
Tensors run(const Operator& op, at::Device device, at::ScalarType type) {
  test::Random random(6);
  const auto parameter = [&](at::IntArrayRef sizes) {
    Parameter made = random.parameter(sizes, type);
    made.value = made.value.to(device);
    made.gradient = made.gradient.to(device);
    return made;
  };
  const auto input = [&](at::IntArrayRef sizes) {
    return test::leaf(random(sizes, type).to(device));
  };
  return op(input, parameter);
}

TEST_CASE("GPU: operators and their gradients equal those on the CPU", "[gpu][kernels]") {
  const auto type = GENERATE(from_range(with_products({at::kFloat, at::kBFloat16, at::kHalf})));
  const std::int64_t head_dim = GENERATE(16, 64, 80);
  CAPTURE(c10::toString(type), head_dim);
  const auto block = [&](const auto& input, const auto& parameter) -> Tensors {
    const std::int64_t batch = 3, tokens = 197, heads = 2, dim = heads * head_dim;
    const at::Tensor x = input({batch * (tokens - 1), dim});
    Parameter token = parameter({1, 1, dim}), positions = parameter({1, tokens, dim});
    Parameter norm_weight = parameter({dim}), norm_bias = parameter({dim});
    Parameter qkv_weight = parameter({3 * dim, dim}), qkv_bias = parameter({3 * dim});
    Parameter up_weight = parameter({4 * dim, dim}), up_bias = parameter({4 * dim});
    qkv_weight.value.mul_(0.02);
    up_weight.value.mul_(0.02);
    const at::Tensor rows = ops::embed_sequence(x, batch, &token, positions);
    const auto [sum, y] = ops::add_layer_norm(rows, rows, norm_weight, norm_bias, 1e-6);
    const at::Tensor attended = ops::attention(
        ops::linear(y, qkv_weight, &qkv_bias),
        {.batch = batch, .heads = heads, .kv_heads = heads, .head_dim = y.size(1) / heads});
    const at::Tensor hidden = ops::linear_gelu(attended + sum, up_weight, up_bias, ops::Gelu::erf);
    const at::Tensor logits = ops::first_token(hidden, batch);
    const auto on = x.options().dtype(at::kFloat);
    const at::Tensor totals = at::zeros({4}, on);
    const at::Tensor loss =
        ops::softmax_cross_entropy(logits, at::full({batch}, 5, x.options().dtype(at::kLong)),
                                   at::full({batch}, 1, on), 0.1, totals);
    (loss * 16).backward();
    return {loss,
            totals,
            logits,
            x.grad(),
            token.gradient,
            positions.gradient,
            norm_weight.gradient,
            norm_bias.gradient,
            qkv_weight.gradient,
            up_weight.gradient,
            up_bias.gradient};
  };
  const Tensors gpu = run(block, at::kCUDA, type), cpu = run(block, at::kCPU, type);
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    CAPTURE(i);
    REQUIRE(far(gpu[i], cpu[i], type, 4096) ==
            "");  // a chain of six operators, each rounding to `type`
  }
}

TEST_CASE("GPU: a matrix is orthogonalised as on the CPU", "[gpu][kernels]") {
  const auto [rows, columns] =
      GENERATE(std::pair(256, 256), std::pair(128, 768), std::pair(768, 128));
  CAPTURE(rows, columns);
  test::Random random(3);
  const at::Tensor x = random({rows, columns}, at::kBFloat16), on_gpu = x.to(at::kCUDA);
  const at::Tensor host = optimizer::orthogonalize(x, 5).to(at::kFloat),
                   gpu = optimizer::orthogonalize(on_gpu, 5);
  REQUIRE(gpu.equal(optimizer::orthogonalize(on_gpu, 5)));
  // Both round every product to bf16; in the norm of the whole they are a few roundings apart.
  const at::Tensor apart = gpu.cpu().to(at::kFloat) - host;
  REQUIRE((apart.norm() / host.norm()).item<float>() < 10 * 0x1p-8f);
}

}  // namespace
}  // namespace dstrain
