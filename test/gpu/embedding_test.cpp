#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"
#include "test/gpu/compare.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

namespace dstrain {
namespace {

using namespace test;

/// Tokens of a batch: all sorts, or one of them for most rows, as padding is.
enum class Kind { mixed, same, padded, unknown };

at::Tensor make_tokens(test::Random& random, Kind kind, std::int64_t rows, std::int64_t vocab) {
  at::Tensor tokens = (random({rows}).abs() * 1e6).to(at::kLong).remainder(vocab);
  if (kind == Kind::same) tokens.fill_(vocab - 1);
  if (kind == Kind::padded) tokens.narrow(0, rows / 5, rows - rows / 5).fill_(vocab / 2);
  if (kind == Kind::unknown) {
    tokens[0] = vocab;
    tokens[rows - 1] = -1;
  }
  return tokens;
}

TEST_CASE("GPU: token embedding and its gradient equal their references", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const auto kind = GENERATE(Kind::mixed, Kind::same, Kind::padded, Kind::unknown);
  const std::int64_t rows = GENERATE(1, 32, 33, 64, 1000, 16385);
  const std::int64_t vocab = GENERATE(3, 500, 151'936);
  const std::int64_t dim = vocab > 1000 ? 8 : 264;
  CAPTURE(c10::toString(type), static_cast<int>(kind), rows, vocab);
  test::Random random(1);
  const at::Tensor tokens = make_tokens(random, kind, rows, vocab),
                   table = random({vocab, dim}, type), grad = random({rows, dim}, type);
  if (kind != Kind::unknown) {  // nan is far from nan
    compare(
        {tokens, table, grad}, 2, 1,
        [&](const Tensors& t) {
          return kernels::EmbedTokens{.tokens = t[0].const_data_ptr<std::int64_t>(),
                                      .table = in(t[1]),
                                      .out = out(t[2]),
                                      .rows = rows,
                                      .vocab = vocab,
                                      .dim = dim,
                                      .dtype = ops::kernel_dtype(t[1])};
        },
        kernels::cuda::embed_tokens, kernels::reference::embed_tokens);
  }
  const at::Tensor scratch = at::empty({kernels::embed_tokens_scratch(rows, vocab, dim)},
                                       at::TensorOptions(at::kCUDA).dtype(at::kByte));
  const at::ScalarType held =
      type == at::kBFloat16 ? GENERATE(at::kFloat, at::kBFloat16) : at::kFloat;
  CAPTURE(c10::toString(held));
  compare(
      {tokens, grad, random({vocab, dim}, held)}, 2, rows,
      [&](const Tensors& t) {
        return kernels::EmbedTokensBackward{.tokens = t[0].const_data_ptr<std::int64_t>(),
                                            .grad_out = in(t[1]),
                                            .grad_table = out(t[2]),
                                            .scratch = out(scratch),
                                            .rows = rows,
                                            .vocab = vocab,
                                            .dim = dim,
                                            .dtype = ops::kernel_dtype(t[1]),
                                            .table = ops::kernel_dtype(t[2])};
      },
      kernels::cuda::embed_tokens_backward, kernels::reference::embed_tokens_backward);
}

TEST_CASE("GPU: embed_tokens equals that on the CPU and gives nan for unknown tokens",
          "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const auto run = [&](at::Device device) -> Tensors {
    test::Random random(2);
    Parameter table = random.parameter({500, 64}, type);
    const at::Tensor tokens = make_tokens(random, Kind::padded, 777, 500).to(device),
                     dy = random({777, 64}, type).to(device);
    table.value = table.value.to(device);
    table.gradient = at::full({500, 64}, 9, table.value.options().dtype(at::kFloat));
    table.gradient_state = GradientState::empty;
    const at::Tensor y = ops::embed_tokens(tokens, table);
    y.backward(dy);
    return {y, table.gradient};
  };
  const Tensors gpu = run(at::kCUDA), cpu = run(at::kCPU);
  REQUIRE(gpu[0].cpu().equal(cpu[0]));
  REQUIRE(far(gpu[1], cpu[1], at::kFloat, 777) == "");

  test::Random random(3);
  Parameter table = random.parameter({5, 8}, type);
  table.value = table.value.to(at::kCUDA);
  const at::Tensor tokens = make_tokens(random, Kind::unknown, 4, 5).to(at::kCUDA);
  const at::Tensor unknown = ops::embed_tokens(tokens, table).isnan().all(1).cpu();
  REQUIRE(unknown[0].item<bool>());
  REQUIRE(unknown[3].item<bool>());
  REQUIRE_FALSE(unknown[1].item<bool>());
}

}  // namespace
}  // namespace dstrain
