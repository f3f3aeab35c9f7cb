#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>

#include <memory>

#include "engine/kernels/linear/fp8.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/linear/low_rank.h"
#include "engine/kernels/ops.h"
#include "test/gpu/bench.h"

/// Matrix products and the kernels around them at the shapes of real models; hidden, run with
/// `test_gpu "[.bench]"`. With DSTRAIN_GEMM_TUNE=0 the products run as cuBLASLt proposes.
namespace dstrain {
namespace {

using namespace test;

struct LinearShape {
  const char* name;
  std::int64_t rows, width, qkv, hidden, classes;
  bool gated;  ///< gate and up in one product, no biases there
};
constexpr LinearShape kLinearShapes[] = {{"Qwen2.5-3B", 16384, 2048, 2560, 11008, 151'936, true},
                                         {"Qwen2.5-0.5B", 16384, 896, 1152, 4864, 151'936, true},
                                         {"BLOOM-560m", 16384, 1024, 3072, 4096, 250'880, false},
                                         {"ViT-H/14", 16448, 1280, 3840, 5120, 1000, false}};
constexpr std::int64_t kHeadRows = 4096;
constexpr double kPeakFlopPerS = 989e12, kPeakFp8FlopPerS = 1979e12;  // of the data sheet, dense

std::string matrix_text(std::int64_t a, std::int64_t b) {
  return "[" + std::to_string(a) + ", " + std::to_string(b) + "]";
}

std::vector<Case> activation_cases(const LinearShape& s) {
  const std::int64_t rows = s.rows, cols = s.hidden;
  const double mf = 2.0 * static_cast<double>(rows * cols);
  if (!s.gated) {
    return {{"bias_gelu, tanh", matrix_text(rows, cols), 2 * mf,
             [=] {
               const auto z = random({rows, cols}), bias = random({cols}), y = random({rows, cols});
               return launch<kernels::BiasGelu>(
                   kernels::cuda::bias_gelu,
                   {data(z), data(bias), data(y), rows, cols, kDType, kernels::Gelu::tanh},
                   {z, bias, y});
             }},
            {"bias_gelu_backward, tanh", matrix_text(rows, cols), 3 * mf, [=] {
               const auto z = random({rows, cols}), bias = random({cols}),
                          dy = random({rows, cols}), dz = random({rows, cols}),
                          dbias = random32({cols}),
                          partial = random32({kernels::column_partials(rows, cols), cols});
               return launch<kernels::BiasGeluBackward>(
                   kernels::cuda::bias_gelu_backward,
                   {data(z), data(bias), data(dy), data(dz), fp32(dbias), fp32(partial), rows, cols,
                    kDType, kernels::Gelu::tanh},
                   {z, bias, dy, dz, dbias, partial});
             }}};
  }
  return {
      {"swiglu", matrix_text(rows, cols), 3 * mf,
       [=] {
         const auto gate_up = random({rows, 2 * cols}), h = random({rows, cols});
         return launch<kernels::Swiglu>(kernels::cuda::swiglu,
                                        {data(gate_up), data(h), rows, cols, kDType}, {gate_up, h});
       }},
      {"swiglu with maxima", matrix_text(rows, cols), 3 * mf,
       [=] {
         const auto gate_up = random({rows, 2 * cols}), h = random({rows, cols}),
                    maxima = random32({kernels::kAbsMaxPartials}),
                    gains = random32({kernels::kAbsMaxPartials});
         return launch<kernels::Swiglu>(
             kernels::cuda::swiglu,
             {data(gate_up), data(h), rows, cols, kDType, fp32(maxima), fp32(gains)},
             {gate_up, h, maxima, gains});
       }},
      {"swiglu_codes", matrix_text(rows, cols), 5.5 * mf,
       [=] {
         const auto gate_up = random({rows, 2 * cols}), dh = random({rows, cols}),
                    maxima = random32({kernels::kAbsMaxPartials}),
                    gains = random32({kernels::kAbsMaxPartials}), scale = random32({1}),
                    h_scale = random32({1}),
                    out = at::randint(256, {rows, 2 * cols}, on_gpu(at::kByte)),
                    out_t = at::randint(256, {2 * cols, rows}, on_gpu(at::kByte)),
                    h_t = at::randint(256, {cols, rows}, on_gpu(at::kByte));
         return launch<kernels::SwigluCodes>(
             kernels::cuda::swiglu_codes,
             {data(gate_up), data(dh), fp32(maxima), fp32(gains), fp32(scale), ops::code_bytes(out),
              ops::code_bytes(out_t), fp32(h_scale), ops::code_bytes(h_t), rows, cols, kDType},
             {gate_up, dh, maxima, gains, scale, h_scale, out, out_t, h_t});
       }},
      {"swiglu_backward", matrix_text(rows, cols), 6 * mf, [=] {
         const auto gate_up = random({rows, 2 * cols}), dh = random({rows, cols}),
                    grad = random({rows, 2 * cols}), h = random({rows, cols});
         return launch<kernels::SwigluBackward>(
             kernels::cuda::swiglu_backward,
             {data(gate_up), data(dh), data(grad), data(h), rows, cols, kDType},
             {gate_up, dh, grad, h});
       }}};
}

std::vector<Case> narrow_cases(const LinearShape& s) {
  const std::int64_t rows = s.rows, cols = s.hidden;
  const double elements = static_cast<double>(rows * cols);
  const auto quantize = [=](bool by_rows, bool by_columns) {
    return [=] {
      const auto x = random({rows, cols}), scale = random32({1}),
                 partial = random32({kernels::kAbsMaxPartials}),
                 out = at::randint(256, {rows, cols}, on_gpu(at::kByte)),
                 out_t = at::randint(256, {cols, rows}, on_gpu(at::kByte));
      return launch<kernels::Quantize>(
          kernels::cuda::quantize,
          {data(x), by_rows ? out.mutable_data_ptr<std::uint8_t>() : nullptr,
           by_columns ? out_t.mutable_data_ptr<std::uint8_t>() : nullptr, fp32(partial),
           fp32(scale), rows, cols, kernels::Fp8Format::e4m3, kDType},
          {x, scale, partial, out, out_t});
    };
  };
  return {
      {"dropout", matrix_text(rows, s.width), 4.0 * static_cast<double>(rows * s.width),
       [=, width = s.width] {
         const auto x = random({rows, width}), y = random({rows, width}),
                    seed = at::full({}, 5, x.options().dtype(at::kLong));
         return launch<kernels::Dropout>(
             kernels::cuda::dropout,
             {data(x), data(y), rows * width, seed.const_data_ptr<std::int64_t>(), 5, 0.1f, kDType},
             {x, y, seed});
       }},
      {"abs_max", matrix_text(rows, cols), 2 * elements,
       [=] {
         const auto x = random({rows, cols}), partial = random32({kernels::kAbsMaxPartials});
         return launch<kernels::AbsMax>(
             kernels::cuda::abs_max, {data(x), fp32(partial), rows * cols, kDType}, {x, partial});
       }},
      {"quantize, rows", matrix_text(rows, cols), 3 * elements, quantize(true, false)},
      {"quantize, columns", matrix_text(rows, cols), 3 * elements, quantize(false, true)},
      {"quantize, both", matrix_text(rows, cols), 4 * elements, quantize(true, true)}};
}

/// Adapters of one input, with dropout. Bytes: x once in; and for gradients once more, and dx out.
std::vector<Case> low_rank_cases(std::int64_t rows, std::int64_t columns, int parts, int rank) {
  const double bytes = 2.0 * static_cast<double>(rows * columns);
  const std::string shape =
      matrix_text(rows, columns) + ", " + std::to_string(parts) + " of " + std::to_string(rank);
  const auto parts_of = [=](const at::Tensor& a, const at::Tensor& seed) {
    kernels::LowRankParts made;
    for (int i = 0; i < parts; ++i)
      made.part[made.count++] = {.a = a.narrow(0, i * rank, rank).const_data_ptr(),
                                 .rank = rank,
                                 .column = i * rank,
                                 .share = 0.05f,
                                 .scale_of_a = 1,
                                 .seed = seed.const_data_ptr<std::int64_t>(),
                                 .place = 5 + static_cast<std::uint64_t>(i),
                                 .rows = nullptr,
                                 .whole_columns = 0,
                                 .first_column = 0};
    return made;
  };
  return {{"low_rank_rows", shape, bytes,
           [=] {
             const auto x = random({rows, columns}), a = random({parts * rank, columns}),
                        u = random({rows, parts * rank}), seed = at::full({}, 5, on_gpu(at::kLong));
             return launch<kernels::LowRankRows>(
                 kernels::cuda::low_rank_rows,
                 {data(x), data(u), rows, columns, parts * rank, parts_of(a, seed), kDType},
                 {x, a, u, seed});
           }},
          {"low_rank_gradients", shape, 2 * bytes, [=] {
             const auto x = random({rows, columns}), dx = random({rows, columns}),
                        a = random({parts * rank, columns}), du = random({rows, parts * rank}),
                        partial = random32(
                            {kernels::low_rank_splits(rows, columns) * parts * rank, columns}),
                        seed = at::full({}, 5, on_gpu(at::kLong));
             return launch<kernels::LowRankGradients>(
                 kernels::cuda::low_rank_gradients,
                 {data(x), data(du), data(dx), false, fp32(partial), rows, columns, parts * rank,
                  parts_of(a, seed), kDType},
                 {x, dx, a, du, partial, seed});
           }}};
}

/// What an adapter of gate and up, and one of down, take without dropout. Bytes: the gradient of
/// the output once in; gate and up in and h out; gate, up and h's gradient in, gradients of gate
/// and up out.
std::vector<Case> adapter_cases(std::int64_t rows, std::int64_t columns, int rank) {
  const double bytes = 2.0 * static_cast<double>(rows * columns);
  const std::string shape = matrix_text(rows, columns) + ", rank " + std::to_string(rank);
  const auto part_of = [=](const at::Tensor& a) {
    kernels::LowRankParts made;
    made.part[made.count++] = {.a = a.const_data_ptr(),
                               .rank = rank,
                               .column = 0,
                               .share = 0,
                               .scale_of_a = 1,
                               .seed = nullptr,
                               .place = 5,
                               .rows = nullptr,
                               .whole_columns = 0,
                               .first_column = 0};
    return made;
  };
  return {
      {"low_rank_outputs", shape, bytes,
       [=] {
         const auto dy = random({rows, 2 * columns}), u = random({rows, rank}),
                    b = random({columns, rank}), du = random({rows, rank}),
                    strips = random32({kernels::low_rank_strips(columns) * rows, rank}),
                    sums =
                        random32({kernels::low_rank_output_splits(rows, columns), columns * rank});
         return launch<kernels::LowRankOutputs>(
             kernels::cuda::low_rank_outputs,
             {data(dy), data(u), data(b), fp32(strips), fp32(sums), data(du), 1, 1, rows, columns,
              2 * columns, rank, rank, kDType},
             {dy, u, b, du, strips, sums});
       }},
      {"low_rank_gate", shape, 5 * bytes, [=] {
         const auto gate_up = random({rows, 2 * columns}), dh = random({rows, columns}),
                    grad = random({rows, 2 * columns}), a = random({rank, columns}),
                    du = random({rows, rank}),
                    partial = random32({kernels::low_rank_splits(rows, columns) * rank, columns});
         return launch<kernels::LowRankGate>(
             kernels::cuda::low_rank_gate,
             {data(gate_up), data(dh), data(du), data(grad), fp32(partial), rows, columns, rank,
              part_of(a), kDType, kernels::GateActivation::silu},
             {gate_up, dh, grad, a, du, partial});
       }}};
}

/// Bytes: logits once in, gradients once out.
Case vocab_case(const LinearShape& s) {
  const std::int64_t rows = kHeadRows, classes = s.classes;
  return {"vocab_loss", matrix_text(rows, classes), 4.0 * static_cast<double>(rows * classes), [=] {
            const auto logits = random({rows, classes}),
                       labels = at::randint(classes, {rows}, on_gpu(at::kLong)),
                       weights = at::ones({rows}, on_gpu(at::kFloat)), grad_loss = random32({1}),
                       loss = random32({rows}), top1 = random32({rows});
            return launch<kernels::VocabLoss>(
                kernels::cuda::vocab_loss,
                {data(logits), labels.const_data_ptr<std::int64_t>(), fp32(weights),
                 fp32(grad_loss), fp32(loss), fp32(top1), rows, classes, classes, kDType},
                {logits, labels, weights, grad_loss, loss, top1});
          }};
}

/// Bytes: logits once in. Rows of a step of answers.
Case likely_class_case(const LinearShape& s, std::int64_t rows) {
  const std::int64_t classes = s.classes;
  return {
      "likely_class", matrix_text(rows, classes), 2.0 * static_cast<double>(rows * classes), [=] {
        const int parts = kernels::likely_class_parts(rows, classes);
        const auto logits = random({rows, classes}), best = at::zeros({rows}, on_gpu(at::kLong)),
                   logarithm = random32({rows}), scratch = random32({rows * parts * 3});
        return launch<kernels::LikelyClass>(
            kernels::cuda::likely_class,
            {data(logits), best.mutable_data_ptr<std::int64_t>(), fp32(logarithm), fp32(scratch),
             rows, classes, parts, kDType},
            {logits, best, logarithm, scratch});
      }};
}

TEST_CASE("bench: kernels around products", "[.bench]") {
  print_head();
  for (const LinearShape& s : kLinearShapes) {
    print_rows(activation_cases(s), s.name);
    if (s.classes > 10'000)
      print_rows({vocab_case(s), likely_class_case(s, 1), likely_class_case(s, 16),
                  likely_class_case(s, 512)},
                 s.name);
  }
  print_rows(narrow_cases(kLinearShapes[0]), kLinearShapes[0].name);
}

TEST_CASE("bench: adapters", "[.bench]") {
  const LinearShape& s = kLinearShapes[0];
  print_head();
  for (const int rank : {8, 16}) print_rows(adapter_cases(s.rows, s.hidden, rank), s.name);
  print_rows(low_rank_cases(s.rows, s.width, 3, 16), s.name);
  print_rows(low_rank_cases(s.rows, s.width, 1, 32), s.name);
  print_rows(low_rank_cases(s.rows, s.hidden, 1, 16), s.name);
}

struct Product {
  const char* name;
  std::int64_t rows, in, out;
  bool bias;
};

std::vector<Product> products_of(const LinearShape& s) {
  std::vector<Product> list = {
      {"qkv", s.rows, s.width, s.qkv, true},
      {"output", s.rows, s.width, s.width, !s.gated},
      {s.gated ? "gate up" : "up", s.rows, s.width, s.gated ? 2 * s.hidden : s.hidden, false},
      {"down", s.rows, s.hidden, s.width, !s.gated}};
  if (s.classes > 10'000) list.push_back({"head", kHeadRows, s.width, s.classes, false});
  return list;
}

void print_product(const LinearShape& s, const Product& p, const char* what, double flop_factor,
                   double peak, const std::function<Run()>& make) {
  const double flop = 2.0 * static_cast<double>(p.rows * p.in) * static_cast<double>(p.out);
  const double bytes = 2.0 * static_cast<double>(p.rows * (p.in + p.out) + p.in * p.out);
  const double one_s = seconds_of(make, bytes), rate = flop_factor * flop / one_s;
  std::printf("| %s | %s | %s [%lld, %lld, %lld] | %.3f | %.0f |\n", what, s.name, p.name,
              static_cast<long long>(p.rows), static_cast<long long>(p.in),
              static_cast<long long>(p.out), 1e3 * one_s, 1e-12 * rate);
  std::fflush(stdout);
  CHECK(rate < peak);
}

void print_products(const LinearShape& s, const Product& p) {
  const auto weight_of = [p] { return random({p.out, p.in}); };
  print_product(s, p, "forward", 1, kPeakFlopPerS, [=]() -> Run {
    const auto x = random({p.rows, p.in}), w = weight_of(), y = random({p.rows, p.out}),
               bias = p.bias ? random({p.out}) : at::Tensor();
    return [=] { ops::multiply(x, w.t(), y, {.bias = bias}); };
  });
  print_product(s, p, "input gradient", 1, kPeakFlopPerS, [=]() -> Run {
    const auto dx = random({p.rows, p.in}), w = weight_of(), dy = random({p.rows, p.out});
    return [=] { ops::multiply(dy, w, dx); };
  });
  for (const bool add : {false, true}) {
    print_product(s, p, add ? "weight gradient, added" : "weight gradient", 1, kPeakFlopPerS,
                  [=]() -> Run {
                    const auto x = random({p.rows, p.in}), dy = random({p.rows, p.out}),
                               gradient = random32({p.out, p.in});
                    return [=] { ops::multiply(dy.t(), x, gradient, {.add = add}); };
                  });
  }
}

/// Forward and backward of the operator: three products; in FP8 with all its conversions, the
/// weight's kept.
void print_linear(const LinearShape& s, const Product& p, bool fp8) {
  print_product(s, p, fp8 ? "linear, FP8" : "linear", 3, fp8 ? kPeakFp8FlopPerS : kPeakFlopPerS,
                [=]() -> Run {
                  const auto weight = std::make_shared<Parameter>(),
                             bias = std::make_shared<Parameter>();
                  weight->shape = {p.out, p.in};
                  weight->value = random({p.out, p.in});
                  weight->gradient = random32({p.out, p.in});
                  weight->fp8 = fp8;
                  weight->version = 1;
                  bias->shape = {p.out};
                  bias->value = random({p.out});
                  bias->gradient = random32({p.out});
                  const auto x = random({p.rows, p.in}), dy = random({p.rows, p.out});
                  x.requires_grad_(true);
                  return [=] {
                    x.mutable_grad() = at::Tensor();
                    ops::linear(x, *weight, p.bias ? bias.get() : nullptr).backward(dy);
                  };
                });
}

TEST_CASE("bench: products", "[.bench]") {
  std::puts("| product | model | rows, in, out | ms | TFLOP/s |\n| --- | --- | --- | --- | --- |");
  for (const LinearShape& s : kLinearShapes) {
    for (const Product& p : products_of(s)) {
      print_products(s, p);
      print_linear(s, p, false);
      if (p.rows % 16 == 0 && p.out < 100'000) print_linear(s, p, true);
    }
  }
}

/// Forward and backward, 3 products and the loss between them, per row of the batch.
TEST_CASE("bench: the head", "[.bench]") {
  std::puts(
      "| head | model | rows, width, classes | ms | TFLOP/s |\n| --- | --- | --- | --- | --- |");
  for (const LinearShape& s : kLinearShapes) {
    if (s.classes < 10'000) continue;
    print_product(s, {"head", s.rows, s.width, s.classes, false}, "linear_cross_entropy", 3,
                  kPeakFlopPerS, [&s]() -> Run {
                    const auto table = std::make_shared<Parameter>();
                    table->shape = {s.classes, s.width};
                    table->value = random({s.classes, s.width}).mul_(0.02);
                    table->gradient = random32({s.classes, s.width});
                    const auto x = random({s.rows, s.width}),
                               labels = at::randint(s.classes, {s.rows}, on_gpu(at::kLong)),
                               weights = at::ones({s.rows}, on_gpu(at::kFloat)),
                               totals = random32({4});
                    x.requires_grad_(true);
                    return [=] {
                      x.mutable_grad() = at::Tensor();
                      ops::linear_cross_entropy(x, *table, labels, weights, totals).backward();
                    };
                  });
  }
}

}  // namespace
}  // namespace dstrain
