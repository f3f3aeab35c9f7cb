#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <unordered_set>

#include "test/gpu/bench.h"

/// Norms, token embedding and the bf16 optimizer at the shapes of language models; hidden, run with
/// `test_gpu "[.bench]"`.
namespace dstrain {
namespace {

using namespace test;

struct NormShape {
  const char* name;
  std::int64_t rows, dim, vocab, num_parameters;
};
constexpr NormShape kNormShapes[] = {{"Qwen2.5-3B", 16384, 2048, 151'936, 3'085'938'688},
                                     {"Qwen2.5-7B", 16384, 3584, 152'064, 0},
                                     {"Qwen2.5-0.5B", 16384, 896, 151'936, 0},
                                     {"BLOOM-560m", 16384, 1024, 250'880, 559'214'592}};

std::string text(const NormShape& s) {
  return "[" + std::to_string(s.rows) + ", " + std::to_string(s.dim) + "]";
}

std::vector<Case> norm_cases(const NormShape& s) {
  const std::int64_t rows = s.rows, dim = s.dim;
  const double md = 2.0 * static_cast<double>(rows * dim);
  const auto rms_backward = [=](bool frozen) -> Run {
    const auto sum = random({rows, dim}), weight = random({dim}), grad_y = random({rows, dim}),
               grad_sum = random({rows, dim}), rstd = random32({rows}).abs(),
               grad_x = random({rows, dim}), grad_weight = random32({dim}),
               partial = random32({kernels::norm_partials(rows), dim});
    return launch<kernels::AddRmsNormBackward>(
        kernels::cuda::add_rms_norm_backward,
        {data(sum), data(weight), data(grad_y), data(grad_sum), fp32(rstd), data(grad_x),
         frozen ? nullptr : fp32(grad_weight), fp32(partial), rows, dim, kDType},
        {sum, weight, grad_y, grad_sum, rstd, grad_x, grad_weight, partial});
  };
  return {
      {"add_rms_norm", text(s), 4 * md,
       [=] {
         const auto x = random({rows, dim}), delta = random({rows, dim}), weight = random({dim}),
                    sum = random({rows, dim}), y = random({rows, dim}), rstd = random32({rows});
         return launch<kernels::AddRmsNorm>(kernels::cuda::add_rms_norm,
                                            {data(x), data(delta), data(weight), data(sum), data(y),
                                             fp32(rstd), rows, dim, 1e-6f, kDType},
                                            {x, delta, weight, sum, y, rstd});
       }},
      {"add_rms_norm_backward", text(s), 4 * md, [=] { return rms_backward(false); }},
      {"add_rms_norm_backward, frozen", text(s), 4 * md, [=] { return rms_backward(true); }},
      {"add_layer_norm", text(s), 4 * md,
       [=] {
         const auto x = random({rows, dim}), delta = random({rows, dim}), weight = random({dim}),
                    bias = random({dim}), sum = random({rows, dim}), y = random({rows, dim}),
                    mean = random32({rows}), rstd = random32({rows});
         return launch<kernels::AddLayerNorm>(
             kernels::cuda::add_layer_norm,
             {data(x), data(delta), data(weight), data(bias), data(sum), data(y), fp32(mean),
              fp32(rstd), rows, dim, 1e-5f, kDType},
             {x, delta, weight, bias, sum, y, mean, rstd});
       }},
      {"add_layer_norm_backward", text(s), 4 * md, [=] {
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
       }}};
}

/// Tokens as frequent as words are, the k-th in proportion to 1 / k; or one token in three quarters
/// of the rows, as padding is.
at::Tensor make_tokens(const NormShape& s, bool padded) {
  const at::Tensor share = at::rand({s.rows}, at::TensorOptions().dtype(at::kDouble));
  at::Tensor tokens = share.mul(std::log(static_cast<double>(s.vocab))).exp().to(at::kLong).sub(1);
  if (padded) tokens.narrow(0, s.rows / 4, s.rows - s.rows / 4).fill_(s.vocab - 1);
  return tokens;
}

/// Bytes of backward: each row of gradients once, each touched row of the table in and out.
std::vector<Case> embedding_cases(const NormShape& s) {
  const std::int64_t rows = s.rows, dim = s.dim, vocab = s.vocab;
  const double md = 2.0 * static_cast<double>(rows * dim);
  std::vector<Case> cases{{"embed_tokens", text(s), 2 * md, [=] {
                             const auto tokens = make_tokens(s, false).to(at::kCUDA),
                                        table = random({vocab, dim}), out = random({rows, dim});
                             return launch<kernels::EmbedTokens>(
                                 kernels::cuda::embed_tokens,
                                 {tokens.const_data_ptr<std::int64_t>(), data(table), data(out),
                                  rows, vocab, dim, kDType},
                                 {tokens, table, out});
                           }}};
  for (const bool padded : {false, true}) {
    const at::Tensor host = make_tokens(s, padded);
    const auto* first = host.const_data_ptr<std::int64_t>();
    const std::unordered_set<std::int64_t> distinct(first, first + rows);
    const double table_bytes =
        8.0 * static_cast<double>(distinct.size()) * static_cast<double>(dim);
    cases.push_back({std::string("embed_tokens_backward, ") + (padded ? "padded" : "mixed"),
                     text(s), md + table_bytes, [=] {
                       const auto tokens = host.to(at::kCUDA), grad = random({rows, dim}),
                                  table = at::zeros({vocab, dim}, on_gpu(at::kFloat)),
                                  scratch =
                                      at::zeros({kernels::embed_tokens_scratch(rows, vocab, dim)},
                                                on_gpu(at::kByte));
                       return launch<kernels::EmbedTokensBackward>(
                           kernels::cuda::embed_tokens_backward,
                           {tokens.const_data_ptr<std::int64_t>(), data(grad), fp32(table),
                            data(scratch), rows, vocab, dim, kDType},
                           {tokens, grad, table, scratch});
                     }});
  }
  return cases;
}

std::vector<Case> optimizer_cases(const NormShape& s) {
  const std::int64_t n = s.num_parameters;
  if (n == 0) return {};
  const std::string shape = "[" + std::to_string(n) + "]";
  return {{"adamw_bf16", shape, 16 * static_cast<double>(n),
           [=] { return optimizer_step(optimizer::AdamW{.lr = 1e-4}, n, at::kBFloat16); }},
          {"sgd_bf16", shape, 12 * static_cast<double>(n),
           [=] { return optimizer_step(optimizer::Sgd{.lr = 1e-4}, n, at::kBFloat16); }}};
}

TEST_CASE("bench: norms, token embedding and the bf16 optimizer", "[.bench]") {
  print_head();
  for (const NormShape& shape : kNormShapes) {
    for (const auto& cases : {norm_cases(shape), embedding_cases(shape), optimizer_cases(shape)})
      print_rows(cases, shape.name);
  }
}

}  // namespace
}  // namespace dstrain
