#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/kernels/image/augment.h"
#include "test/gpu/bench.h"

/// How long every kernel takes on an H200 at the shapes of real models; hidden, run with
/// `test_gpu "[bench]"`. Bytes are those of engine/kernels/BENCHMARKS.md.
namespace dstrain {
namespace {

using namespace test;

struct VitShape {
  const char* name;
  std::int64_t batch, tokens, dim, hidden, heads, patch, num_parameters;
  [[nodiscard]] std::int64_t rows() const { return batch * tokens; }
};
constexpr VitShape kVitShapes[] = {{"ViT-B/16", 128, 197, 768, 3072, 12, 16, 86'567'656},
                                   {"ViT-H/14", 64, 257, 1280, 5120, 16, 14, 632'045'800}};

std::vector<Case> norm_and_column_cases(const VitShape& s) {
  const std::int64_t rows = s.rows(), dim = s.dim, hidden = s.hidden, qkv = 3 * s.dim;
  const double md = 2.0 * static_cast<double>(rows * dim);
  const double mf = 2.0 * static_cast<double>(rows * hidden);
  const std::string at_dim = "[" + std::to_string(rows) + ", " + std::to_string(dim) + "]";
  const std::string at_hidden = "[" + std::to_string(rows) + ", " + std::to_string(hidden) + "]";
  const std::string at_qkv = "[" + std::to_string(rows) + ", " + std::to_string(qkv) + "]";
  return {
      {"add_layer_norm", at_dim, 4 * md,
       [=] {
         const auto x = random({rows, dim}), delta = random({rows, dim}), weight = random({dim}),
                    bias = random({dim}), sum = random({rows, dim}), y = random({rows, dim}),
                    mean = random32({rows}), rstd = random32({rows});
         return launch<kernels::AddLayerNorm>(
             kernels::cuda::add_layer_norm,
             {data(x), data(delta), data(weight), data(bias), data(sum), data(y), fp32(mean),
              fp32(rstd), rows, dim, 1e-6f, kDType},
             {x, delta, weight, bias, sum, y, mean, rstd});
       }},
      {"add_layer_norm_backward", at_dim, 4 * md,
       [=] {
         const auto sum = random({rows, dim}), weight = random({dim}), grad_y = random({rows, dim}),
                    grad_sum = random({rows, dim}), mean = random32({rows}),
                    rstd = random32({rows}).abs(), grad_x = random({rows, dim}),
                    grad_weight = random32({dim}), grad_bias = random32({dim}),
                    partial = random32({kernels::norm_partials(rows), 2, dim});
         return launch<kernels::AddLayerNormBackward>(
             kernels::cuda::add_layer_norm_backward,
             {data(sum), data(weight), data(grad_y), data(grad_sum), fp32(mean), fp32(rstd),
              data(grad_x), fp32(grad_weight), fp32(grad_bias), fp32(partial), rows, dim, kDType},
             {sum, weight, grad_y, grad_sum, mean, rstd, grad_x, grad_weight, grad_bias, partial});
       }},
      {"bias_gelu", at_hidden, 2 * mf,
       [=] {
         const auto z = random({rows, hidden}), bias = random({hidden}), y = random({rows, hidden});
         return launch<kernels::BiasGelu>(kernels::cuda::bias_gelu,
                                          {data(z), data(bias), data(y), rows, hidden, kDType},
                                          {z, bias, y});
       }},
      {"bias_gelu_backward", at_hidden, 3 * mf,
       [=] {
         const auto z = random({rows, hidden}), bias = random({hidden}),
                    grad_y = random({rows, hidden}), grad_z = random({rows, hidden}),
                    grad_bias = random32({hidden}),
                    partial = random32({kernels::column_partials(rows, hidden), hidden});
         return launch<kernels::BiasGeluBackward>(
             kernels::cuda::bias_gelu_backward,
             {data(z), data(bias), data(grad_y), data(grad_z), fp32(grad_bias), fp32(partial), rows,
              hidden, kDType},
             {z, bias, grad_y, grad_z, grad_bias, partial});
       }},
      {"column_sum", at_qkv, 3 * md,
       [=] {
         const auto x = random({rows, qkv}), sum = random32({qkv}),
                    partial = random32({kernels::column_partials(rows, qkv), qkv});
         return launch<kernels::ColumnSum>(kernels::cuda::column_sum,
                                           {data(x), fp32(sum), fp32(partial), rows, qkv, kDType},
                                           {x, sum, partial});
       }},
  };
}

std::vector<Case> sequence_cases(const VitShape& s) {
  const std::int64_t batch = s.batch, tokens = s.tokens, dim = s.dim, patch = s.patch;
  const double md = 2.0 * static_cast<double>(s.rows() * dim);
  const double images_bytes = 2.0 * static_cast<double>(batch * 3 * 224 * 224);
  const std::string at_dim = "[" + std::to_string(s.rows()) + ", " + std::to_string(dim) + "]";
  return {
      {"patchify", "[" + std::to_string(batch) + ", 3, 224, 224]", 2 * images_bytes,
       [=] {
         const auto images = random({batch, 3, 224, 224}), patches = random({batch, 3, 224, 224});
         return launch<kernels::Patchify>(
             kernels::cuda::patchify,
             {data(images), data(patches), batch, 3, 224, 224, patch, kDType}, {images, patches});
       }},
      {"embed_sequence", at_dim, 2 * md,
       [=] {
         const auto patches = random({batch, tokens - 1, dim}), token = random({dim}),
                    positions = random({tokens, dim}), out = random({batch, tokens, dim});
         return launch<kernels::EmbedSequence>(
             kernels::cuda::embed_sequence,
             {data(patches), data(token), data(positions), data(out), batch, tokens, dim, kDType},
             {patches, token, positions, out});
       }},
      {"embed_sequence_backward", at_dim, 2 * md,
       [=] {
         const auto grad = random({batch, tokens, dim}),
                    grad_patches = random({batch, tokens - 1, dim}), token = random32({dim}),
                    positions = random32({tokens, dim});
         return launch<kernels::EmbedSequenceBackward>(
             kernels::cuda::embed_sequence_backward,
             {data(grad), data(grad_patches), fp32(token), fp32(positions), batch, tokens, dim,
              kDType},
             {grad, grad_patches, token, positions});
       }},
  };
}

std::vector<Case> loss_cases(const VitShape& s) {
  const std::int64_t batch = s.batch, classes = 1000;
  const double bytes = 2.0 * static_cast<double>(batch * classes);
  const std::string shape = "[" + std::to_string(batch) + ", 1000]";
  return {
      {"cross_entropy", shape, bytes,
       [=] {
         const auto logits = random({batch, classes}),
                    labels = at::randint(classes, {batch}, on_gpu(at::kLong)),
                    weights = at::ones({batch}, on_gpu(at::kFloat)), sums = random32({batch}),
                    rows = random32({4, batch}), loss = random32({1}), totals = random32({4});
         return launch<kernels::CrossEntropy>(
             kernels::cuda::cross_entropy,
             {data(logits), labels.const_data_ptr<std::int64_t>(), fp32(weights), fp32(sums),
              fp32(rows), fp32(loss), fp32(totals), batch, classes, 0.1f, kDType},
             {logits, labels, weights, sums, rows, loss, totals});
       }},
      {"cross_entropy_backward", shape, 2 * bytes,
       [=] {
         const auto logits = random({batch, classes}),
                    labels = at::randint(classes, {batch}, on_gpu(at::kLong)),
                    weights = at::ones({batch}, on_gpu(at::kFloat)),
                    sums = random32({batch}).add(7.4), grad_loss = random32({1}),
                    grad = random({batch, classes});
         return launch<kernels::CrossEntropyBackward>(
             kernels::cuda::cross_entropy_backward,
             {data(logits), labels.const_data_ptr<std::int64_t>(), fp32(weights), fp32(sums),
              fp32(grad_loss), data(grad), batch, classes, 0.1f, kDType},
             {logits, labels, weights, sums, grad_loss, grad});
       }},
  };
}

std::vector<Case> optimizer_cases(const VitShape& s) {
  const std::int64_t n = s.num_parameters;
  const auto bytes = [n](int each) { return each * static_cast<double>(n); };
  const std::string shape = "[" + std::to_string(n) + "]";
  return {
      {"add_squares", shape, bytes(4),
       [=] {
         const auto x = random32({n}), partial = random32({kernels::kSquarePartials}),
                    sum = random32({1});
         return launch<kernels::AddSquares>(
             kernels::cuda::add_squares,
             {fp32(x), kernels::DType::f32, fp32(partial), fp32(sum), n, 1e-6f}, {x, partial, sum});
       }},
      {"adamw", shape, bytes(30),
       [=] { return optimizer_step(optimizer::AdamW{.lr = 1e-4}, n, at::kFloat); }},
      {"sgd", shape, bytes(22),
       [=] { return optimizer_step(optimizer::Sgd{.lr = 1e-4}, n, at::kFloat); }},
      {"lion", shape, bytes(22),
       [=] { return optimizer_step(optimizer::Lion{.lr = 1e-4}, n, at::kFloat); }},
  };
}

/// Bytes: the pixels of the window once, and the images.
Case augment_case(const VitShape& s, int side) {
  const std::int64_t batch = s.batch;
  const int window = std::min(side, 224);
  return {"augment", "[" + std::to_string(batch) + ", 3], " + std::to_string(side) + " to 224",
          3.0 * static_cast<double>(batch) * (window * window + 2 * 224 * 224), [=] {
            const auto pixels = at::randint(256, {batch, side, side, 3}, on_gpu(at::kByte));
            const auto samples = at::randint(1 << 20, {batch}, on_gpu(at::kLong));
            auto out = random({batch, 3, 224, 224});
            AugmentOptions options;
            options.random_crop = options.horizontal_flip = true;
            options.crop_padding = side < 224 ? 4 : 0;
            options.image_size = 224;
            return [=]() mutable { augment(pixels, samples, options, out); };
          }};
}

TEST_CASE("bench: the optimizer on a thousand million elements", "[.bench]") {
  const std::int64_t n = 1'000'000'000;
  const optimizer::AdamW adamw{.lr = 1e-4};
  const optimizer::Sgd sgd{.lr = 1e-4};
  const optimizer::Lion lion{.lr = 1e-4};
  const auto row = [n](const char* name, const optimizer::Rule& rule, at::ScalarType states,
                       int bytes) {
    return Case{name, "[1e9]", bytes * static_cast<double>(n),
                [=] { return optimizer_step(rule, n, states); }};
  };
  print_head();
  print_rows({row("adamw", adamw, at::kFloat, 30), row("sgd", sgd, at::kFloat, 22),
              row("lion", lion, at::kFloat, 22), row("adamw_bf16", adamw, at::kBFloat16, 16),
              row("sgd_bf16", sgd, at::kBFloat16, 12), row("lion_bf16", lion, at::kBFloat16, 12)},
             "");
}

TEST_CASE("bench: every kernel", "[.bench]") {
  print_head();
  for (const VitShape& shape : kVitShapes) {
    std::vector<Case> cases = norm_and_column_cases(shape);
    for (const auto& more : {sequence_cases(shape), loss_cases(shape), optimizer_cases(shape)}) {
      cases.insert(cases.end(), more.begin(), more.end());
    }
    for (const int side : {32, 256}) cases.push_back(augment_case(shape, side));
    print_rows(cases, shape.name);
  }
}

}  // namespace
}  // namespace dstrain
