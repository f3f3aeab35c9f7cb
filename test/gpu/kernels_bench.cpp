#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/augment.h"
#include "engine/kernels/control.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"
#include "test/support/catch.h"

/// How long every kernel takes on an H200 at the shapes of real models; hidden, run with
/// `test_gpu "[bench]"`. Bytes are those of engine/kernels/README.md.
namespace dstrain {
namespace {

constexpr double kCopyBytesPerS = 4.29e12;   // what a copy between large buffers reaches
constexpr double kMemoryBytesPerS = 4.8e12;  // of the data sheet
constexpr double kRotatedBytes = 240e6;      // several times the L2 cache of 60 MB
constexpr double kRoundBytes = 1e9;          // so much that what stays in L2 hardly counts
constexpr auto kType = at::kBFloat16;
constexpr auto kDType = kernels::DType::bf16;

using Run = std::function<void()>;

struct Case {
  std::string name, shape;
  double bytes;
  std::function<Run()> make;  ///< fresh random tensors, and the launch on them
};

struct Shape {
  const char* name;
  std::int64_t batch, tokens, dim, hidden, heads, patch, num_parameters;
  [[nodiscard]] std::int64_t rows() const { return batch * tokens; }
};
constexpr Shape kShapes[] = {{"ViT-B/16", 128, 197, 768, 3072, 12, 16, 86'567'656},
                             {"ViT-H/14", 64, 257, 1280, 5120, 16, 14, 632'045'800}};

at::TensorOptions on_gpu(at::ScalarType type) { return at::TensorOptions(at::kCUDA).dtype(type); }
at::Tensor random(at::IntArrayRef sizes, at::ScalarType type = kType) {
  return at::randn(sizes, on_gpu(type));
}
at::Tensor random32(at::IntArrayRef sizes) { return random(sizes, at::kFloat); }
void* data(const at::Tensor& tensor) { return tensor.mutable_data_ptr(); }
float* fp32(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

/// Seconds of one launch: the median over rounds of many launches, one after the other so that
/// writes are paid, each on other tensors than the last. A long read before a round empties L2 and
/// lets the host get ahead of the GPU.
double seconds_of(const std::function<Run()>& make, double bytes) {
  const at::Tensor large = random32({1 << 30});
  const auto count = [](double wanted, double least, double most) {
    return static_cast<std::size_t>(std::clamp(std::ceil(wanted), least, most));
  };
  const std::size_t num_launches = count(kRoundBytes / bytes, 8, 64);
  const std::size_t num_sets = count(kRotatedBytes / bytes, bytes < 2e9 ? 2 : 1, 64);
  std::vector<Run> sets;
  for (std::size_t i = 0; i < num_sets; ++i) sets.push_back(make());
  std::vector<double> times;
  std::size_t next = 0;
  for (int round = -1; round < 25; ++round) {  // round -1 warms up
    at::cuda::CUDAEvent start(cudaEventDefault), stop(cudaEventDefault);
    const at::Tensor sum = large.sum();
    start.record();
    for (std::size_t i = 0; i < num_launches; ++i) sets[next++ % num_sets]();
    stop.record();
    stop.synchronize();
    const double round_s = 1e-3 * static_cast<double>(start.elapsed_time(stop));
    if (round >= 0) times.push_back(round_s / static_cast<double>(num_launches));
  }
  std::nth_element(times.begin(), times.begin() + 12, times.end());
  return times[12];
}

/// A launch whose arguments point into `owned`.
template <typename Args>
Run launch(void (*kernel)(const Args&, cudaStream_t), const Args& args,
           std::vector<at::Tensor> owned) {
  return [kernel, args, kept = std::move(owned)] { kernel(args, ops::current_stream()); };
}

std::vector<Case> norm_and_column_cases(const Shape& s) {
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

std::vector<Case> sequence_cases(const Shape& s) {
  const std::int64_t batch = s.batch, tokens = s.tokens, dim = s.dim, heads = s.heads,
                     patch = s.patch, head_dim = dim / heads;
  const double md = 2.0 * static_cast<double>(s.rows() * dim);
  const double images_bytes = 2.0 * static_cast<double>(batch * 3 * 224 * 224);
  const std::string at_dim = "[" + std::to_string(s.rows()) + ", " + std::to_string(dim) + "]";
  return {
      {"pack_heads", at_dim, 6 * md,
       [=] {  // laid out as attention's gradients: [batch, tokens, heads, head_dim]
         const auto q = random({s.rows(), dim}), k = random({s.rows(), dim}),
                    v = random({s.rows(), dim}), out = random({s.rows(), 3 * dim});
         kernels::PackHeads args{
             {data(q), data(k), data(v)}, {}, data(out), batch, heads, tokens, head_dim, kDType};
         for (auto& stride : args.stride) {
           stride[0] = tokens * dim;
           stride[1] = head_dim;
           stride[2] = dim;
         }
         return launch(kernels::cuda::pack_heads, args, {q, k, v, out});
       }},
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

std::vector<Case> loss_cases(const Shape& s) {
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

std::vector<Case> optimizer_cases(const Shape& s) {
  const std::int64_t n = s.num_parameters;
  const auto bytes = [n](int each) { return each * static_cast<double>(n); };
  const std::string shape = "[" + std::to_string(n) + "]";
  const auto make_control = [] {
    const auto control = at::ones({optimizer::kControlSize}, on_gpu(at::kFloat));
    control[optimizer::kSkip].fill_(0);
    return control;
  };
  return {
      {"add_squares", shape, bytes(4),
       [=] {
         const auto x = random32({n}), partial = random32({kernels::kSquarePartials}),
                    sum = random32({1});
         return launch<kernels::AddSquares>(kernels::cuda::add_squares,
                                            {fp32(x), fp32(partial), fp32(sum), n, 1e-6f},
                                            {x, partial, sum});
       }},
      {"adamw", shape, bytes(30),
       [=] {
         const auto master = random32({n}), average = random32({n}),
                    square = random32({n}).square_(), gradient = random32({n}),
                    compute = random({n}), control = make_control();
         return launch<kernels::AdamWStep>(
             kernels::cuda::adamw,
             {fp32(master), fp32(average), fp32(square), fp32(gradient), data(compute),
              fp32(control), n, 1e-4, 0.9, 0.999, 1e-8, 0.1, kDType},
             {master, average, square, gradient, compute, control});
       }},
      {"sgd", shape, bytes(22),
       [=] {
         const auto master = random32({n}), momentum = random32({n}), gradient = random32({n}),
                    compute = random({n}), control = make_control();
         return launch<kernels::SgdStep>(kernels::cuda::sgd,
                                         {fp32(master), fp32(momentum), fp32(gradient),
                                          data(compute), fp32(control), n, 1e-4, 0.9, 0.1, kDType},
                                         {master, momentum, gradient, compute, control});
       }},
  };
}

/// Bytes: the pixels of the window once, and the images.
Case augment_case(const Shape& s, int side) {
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

TEST_CASE("bench: every kernel", "[.bench]") {
  std::puts("| kernel | shape | us | GB/s | share of 4.29 TB/s |\n| --- | --- | --- | --- | --- |");
  for (const Shape& shape : kShapes) {
    std::vector<Case> cases = norm_and_column_cases(shape);
    for (const auto& more : {sequence_cases(shape), loss_cases(shape), optimizer_cases(shape)}) {
      cases.insert(cases.end(), more.begin(), more.end());
    }
    for (const int side : {32, 256}) cases.push_back(augment_case(shape, side));
    for (const Case& c : cases) {
      const double one_s = seconds_of(c.make, c.bytes), rate = c.bytes / one_s;
      std::printf("| %s | %s %s | %.1f | %.0f | %.0f %% |\n", c.name.c_str(), shape.name,
                  c.shape.c_str(), 1e6 * one_s, 1e-9 * rate, 100 * rate / kCopyBytesPerS);
      std::fflush(stdout);
      CAPTURE(c.name, shape.name);
      CHECK(rate < kMemoryBytesPerS);  // else data came from L2, or was not touched
    }
  }
}

/// Backward counts as two and a half times forward's two products of 2 T^2 D each: it has five.
TEST_CASE("bench: attention", "[.bench]") {
  std::puts("| attention | shape | ms | TFLOP/s |\n| --- | --- | --- | --- |");
  for (const Shape& s : kShapes) {
    const double forward_flop =
        4.0 * static_cast<double>(s.rows()) * static_cast<double>(s.tokens * s.dim);
    for (const bool backward : {false, true}) {
      const auto make = [&s, backward]() -> Run {
        const auto qkv = random({s.rows(), 3 * s.dim}), grad = random({s.rows(), s.dim});
        qkv.requires_grad_(backward);
        return [=, &s] {
          qkv.mutable_grad() = at::Tensor();  // else backward adds to the last one's
          const at::Tensor out = ops::attention(qkv, s.batch, s.heads);
          if (backward) out.backward(grad);
        };
      };
      const double one_s = seconds_of(make, 8.0 * static_cast<double>(s.rows() * s.dim));
      const double flop_per_s = (backward ? 3.5 : 1.0) * forward_flop / one_s;
      std::printf("| %s | %s [%lld, 3, %lld, %lld] | %.3f | %.0f |\n",
                  backward ? "forward + backward" : "forward", s.name,
                  static_cast<long long>(s.rows()), static_cast<long long>(s.heads),
                  static_cast<long long>(s.dim / s.heads), 1e3 * one_s, 1e-12 * flop_per_s);
      std::fflush(stdout);
      CHECK(flop_per_s < 989e12);  // the data sheet's dense bf16
    }
  }
}

}  // namespace
}  // namespace dstrain
