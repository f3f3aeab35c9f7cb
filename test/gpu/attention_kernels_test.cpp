#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <vector>

#include "engine/kernels/attention/attention_heads.h"
#include "engine/kernels/attention/short_attention.h"
#include "engine/kernels/gpu.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"
#include "test/gpu/compare.h"
#include "test/kernels/attention_example.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

/// Kernels of attention against the formula in double, and those around it against their
/// references.
namespace dstrain {
namespace {

using namespace test;
using ops::AttentionShape;
using Lengths = std::vector<std::int64_t>;

const AttentionShape kViTs[] = {{.heads = 12, .kv_heads = 12, .head_dim = 64},
                                {.heads = 16, .kv_heads = 16, .head_dim = 80}};

/// Our own kernels (short_attention.h), of up to 320 tokens: one tile of 16 and less, borders of
/// tiles, the lengths of real models.
/// GPUs with less shared memory take fewer tokens.
bool takes_short(std::int64_t tokens, std::int64_t width) {
  return tokens <= kernels::short_attention_max_tokens(width, kernels::cuda::gpu_limits());
}

TEST_CASE("GPU: attention of short sequences equals the formula and repeats its bits",
          "[gpu][attention]") {
  const auto type = GENERATE(from_range(with_products({at::kBFloat16, at::kHalf})));
  const AttentionShape heads = GENERATE(kViTs[0], kViTs[1]);
  const std::int64_t tokens = GENERATE(1, 15, 16, 65, 197, 257, 320);
  const bool interleaved = GENERATE(false, true);
  CAPTURE(c10::toString(type), heads.head_dim, tokens, interleaved);
  AttentionShape shape = heads;
  shape.batch = 3;
  shape.interleaved = interleaved;
  AttentionExample(at::kCUDA, shape, Lengths(3, tokens), type)
      .require_formula([&](const at::Tensor& qkv) { return ops::attention(qkv, shape); });
  if (!takes_short(tokens, shape.head_dim)) return;  // another kernel, whose bits differ
  Random random(9);
  const at::Tensor qkv = random({3 * tokens, shape.qkv_width()}, type).to(at::kCUDA),
                   dy = random({3 * tokens, shape.width()}, type).to(at::kCUDA);
  const auto run = [&] {
    const at::Tensor in = leaf(qkv.clone()), y = ops::attention(in, shape);
    y.backward(dy);
    return std::pair(y.detach(), in.grad());
  };
  const auto first = run(), second = run();
  REQUIRE(first.first.equal(second.first));
  REQUIRE(first.second.equal(second.second));
}

/// Kernels of short_attention.h for one kind of GPU.
struct ShortKernels {
  const char* name;
  void (*forward)(const kernels::ShortAttention&, cudaStream_t);
  void (*backward)(const kernels::ShortAttentionBackward&, cudaStream_t);
  bool leaves_sums = false;
};

std::vector<ShortKernels> short_kernels() {
  using namespace kernels::cuda;
  std::vector<ShortKernels> all = {
      {"mma.sync", short_attention_sm80, short_attention_backward_sm80}};
  if (short_attention_has_sm90())
    all.push_back({"wgmma", short_attention_sm90, short_attention_backward_sm90, true});
  return all;
}

/// Output, log-sum-exp, gradients of rows of qkv, not interleaved, and where they leave them the
/// sums of these, by such kernels.
std::array<at::Tensor, 4> attend_by(const ShortKernels& by, const AttentionShape& shape,
                                    const at::Tensor& qkv, const at::Tensor& dy) {
  const std::int64_t tokens = qkv.size(0) / shape.batch, width = shape.head_dim;
  // What is not written stays a nan.
  const at::Tensor y = at::full_like(dy, std::nan("")), dqkv = at::full_like(qkv, std::nan("")),
                   log_sums = at::full({shape.batch, shape.heads, tokens}, std::nan(""),
                                       qkv.options().dtype(at::kFloat));
  const auto view = [&](const at::Tensor& rows, std::int64_t part) {
    char* data = static_cast<char*>(rows.mutable_data_ptr());
    return kernels::HeadsView{data + part * shape.heads * width * rows.element_size(),
                              tokens * rows.size(1), width, rows.size(1)};
  };
  const kernels::ShortAttention args{
      .query = view(qkv, 0),
      .key = view(qkv, 1),
      .value = view(qkv, 2),
      .out = view(y, 0),
      .log_sum_exp = log_sums.mutable_data_ptr<float>(),
      .batch = shape.batch,
      .heads = shape.heads,
      .tokens = tokens,
      .head_dim = width,
      .scale = 1 / std::sqrt(static_cast<float>(width)),
      .dtype = qkv.scalar_type() == at::kHalf ? kernels::DType::f16 : kernels::DType::bf16};
  const std::int64_t parts = by.leaves_sums ? shape.batch * kernels::kShortAttentionSums : 0;
  const at::Tensor sums = at::full({parts, qkv.size(1)}, std::nan(""), log_sums.options());
  const auto sums_at = [&](std::int64_t part) {
    return by.leaves_sums ? sums.mutable_data_ptr<float>() + part * shape.heads * width : nullptr;
  };
  by.forward(args, nullptr);
  by.backward({.forward = args,
               .grad = view(dy, 0),
               .query_grad = view(dqkv, 0),
               .key_grad = view(dqkv, 1),
               .value_grad = view(dqkv, 2),
               .sums = {.query = sums_at(0),
                        .key = sums_at(1),
                        .value = sums_at(2),
                        .stride = qkv.size(1)}},
              nullptr);
  return {y, log_sums, dqkv, sums};
}

/// Sums over the rows of gradients, by parts of the rows.
void require_sums(const at::Tensor& sums, const at::Tensor& dqkv, const at::Tensor& dy) {
  const at::Tensor all = sums.to(at::kDouble).sum(0);
  const std::int64_t width = dy.size(1), rows = dy.size(0);
  const auto part = [&](std::int64_t i) { return all.narrow(0, i * width, width); };
  REQUIRE(far(part(0), dqkv.narrow(1, 0, width).to(at::kDouble).sum(0), at::kFloat, rows) == "");
  REQUIRE(part(1).eq(0).all().item<bool>());
  REQUIRE(far(part(2), dy.to(at::kDouble).sum(0), at::kFloat, rows) == "");
}

TEST_CASE("GPU: each kernel of short attention equals the formula and repeats its bits",
          "[gpu][attention]") {
  const auto type = GENERATE(from_range(with_products({at::kBFloat16, at::kHalf})));
  const std::int64_t width = GENERATE(64, 80);
  // Whole chunks of 64 rows, a few rows and nearly all of a chunk behind them.
  const std::int64_t tokens = GENERATE(1, 16, 17, 64, 65, 127, 197, 200, 256, 257, 304, 319, 320);
  if (!takes_short(tokens, width)) return;
  const AttentionShape shape{.batch = 2, .heads = 3, .kv_heads = 3, .head_dim = width};
  const AttentionExample example(at::kCUDA, shape, Lengths(2, tokens), type);
  const at::Tensor &qkv = example.qkv, &dy = example.dy;
  for (const ShortKernels& by : short_kernels()) {
    CAPTURE(c10::toString(type), width, tokens, by.name);
    const auto first = attend_by(by, shape, qkv, dy), second = attend_by(by, shape, qkv, dy);
    example.require_formula(first[0], first[2]);
    for (std::size_t i = 0; i < 4; ++i) REQUIRE(first[i].equal(second[i]));
    if (by.leaves_sums) require_sums(first[3], first[2], dy);
  }
}

/// What the product before attention needs of its output's gradient.
TEST_CASE("GPU: the gradient of a bias before attention is the sum of its output's gradient",
          "[gpu][attention]") {
  const AttentionShape heads = GENERATE(kViTs[0], kViTs[1]);
  const std::int64_t tokens = GENERATE(50, 257, 320);
  const bool interleaved = GENERATE(false, true);
  CAPTURE(heads.head_dim, tokens, interleaved);
  AttentionShape shape = heads;
  shape.batch = 3;
  shape.interleaved = interleaved;
  const std::int64_t rows = shape.batch * tokens, width = shape.qkv_width();
  Random random(5);
  Parameter weight = random.parameter({width, 64}, short_type()),
            bias = random.parameter({width}, short_type());
  for (Parameter* parameter : {&weight, &bias}) {
    parameter->value = parameter->value.to(at::kCUDA);
    parameter->gradient = parameter->gradient.to(at::kCUDA);
  }
  const at::Tensor x = leaf(random({rows, 64}, short_type()).to(at::kCUDA)),
                   dy = random({rows, shape.width()}, short_type()).to(at::kCUDA);
  ops::attention(ops::linear(x, weight, &bias), shape).backward(dy);
  const at::Tensor qkv = leaf(ops::linear(x, weight, &bias).detach().clone());
  ops::attention(qkv, shape).backward(dy);
  // What is written is rounded before it is added up here.
  REQUIRE(relative_error(bias.gradient.cpu(), qkv.grad().cpu().to(at::kDouble).sum(0)) <
          3 * unit_roundoff(short_type()));
}

/// Keys that all repel a query: behind the last token a score of zero would be the largest.
TEST_CASE("GPU: each kernel of short attention takes scores far below zero", "[gpu][attention]") {
  const std::int64_t width = GENERATE(64, 80), tokens = GENERATE(5, 197, 255, 257, 304);
  if (!takes_short(tokens, width)) return;
  const AttentionShape shape{.batch = 1, .heads = 1, .kv_heads = 1, .head_dim = width};
  Random random(11);
  const at::Tensor qkv = random({tokens, 3 * width}, short_type()),
                   dy = random({tokens, width}, short_type()).to(at::kCUDA);
  qkv.select(1, 0).fill_(64);
  qkv.select(1, width).fill_(-64);  // scores of about -500
  for (const ShortKernels& by : short_kernels()) {
    CAPTURE(width, tokens, by.name);
    for (const at::Tensor& result : attend_by(by, shape, qkv.to(at::kCUDA), dy))
      REQUIRE(result.isfinite().all().item<bool>());
  }
}

/// Scores far apart, growing over the row: the largest one so far is taken away from each.
TEST_CASE("GPU: attention of short sequences takes large scores", "[gpu][attention]") {
  const bool growing = GENERATE(false, true);
  const std::int64_t width = GENERATE(64, 80), tokens = 257;
  const AttentionShape shape{.batch = 1, .heads = 1, .kv_heads = 1, .head_dim = width};
  const at::Tensor qkv = at::zeros({tokens, 3 * width}, short_type());
  for (std::int64_t i = 0; i < tokens; ++i) {
    qkv[i][0] = 64;                                          // query
    qkv[i][width] = 4 * (growing ? i : tokens - 1 - i) / 8;  // key: scores up to about 1,000
    qkv[i][2 * width] = i;                                   // value
  }
  const at::Tensor y = ops::attention(qkv.to(at::kCUDA), shape).cpu().to(at::kDouble),
                   expected = plain_attention(exact(qkv), shape, {tokens}).detach();
  REQUIRE(y.isfinite().all().item<bool>());
  REQUIRE(far(y, expected, short_type(), tokens) == "");
}

at::Tensor random_table(Random& random, std::int64_t length, std::int64_t head_dim) {
  const at::Tensor angles = random({length, head_dim / 2});
  return at::stack({angles.cos(), angles.sin()}, -1).contiguous();
}

at::Tensor random_places(Random& random, std::int64_t rows, std::int64_t below) {
  return (random({rows}).abs() * 1000).to(at::kInt).remainder(below).to(at::kInt);
}

const std::int32_t* places(const at::Tensor& tensor, bool used) {
  return used ? tensor.const_data_ptr<std::int32_t>() : nullptr;
}

TEST_CASE("GPU: rotate_heads and pack_heads equal their references", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t head_dim = GENERATE(16, 80, 128), kv_heads = GENERATE(1, 5);
  const bool interleaved = GENERATE(false, true), packed = GENERATE(false, true);
  CAPTURE(c10::toString(type), head_dim, kv_heads, interleaved, packed);
  Random random(8);
  const std::int64_t batch = 3, tokens = 67, rows = batch * tokens;
  const kernels::HeadLayout layout{interleaved ? kv_heads : 3 * kv_heads, kv_heads, head_dim,
                                   interleaved};
  const at::Tensor table = random_table(random, tokens, head_dim),
                   positions = random_places(random, rows, tokens);
  compare(
      {table, positions, random({rows, layout.width()}, type)}, 2, 1,
      [&](const Tensors& t) {
        return kernels::RotateHeads{.qkv = out(t[2]),
                                    .table = t[0].const_data_ptr<float>(),
                                    .positions = places(t[1], packed),
                                    .rows = rows,
                                    .tokens = tokens,
                                    .layout = layout,
                                    .dtype = ops::kernel_dtype(t[2])};
      },
      kernels::cuda::rotate_heads, kernels::reference::rotate_heads);
  const std::int64_t wide = head_dim + 16;  // gradients of stretched heads
  const bool turned = GENERATE(false, true);
  compare(
      {table, positions, random({batch, tokens, layout.heads, wide}, type),
       random({batch, kv_heads, tokens, wide}, type), random({batch, tokens, kv_heads, wide}, type),
       random({rows, layout.width()}, type)},
      5, 1,
      [&](const Tensors& t) {
        kernels::PackHeads args{.source = {in(t[2]), in(t[3]), in(t[4])},
                                .stride = {},
                                .table = turned ? t[0].const_data_ptr<float>() : nullptr,
                                .positions = places(t[1], packed),
                                .out = out(t[5]),
                                .batch = batch,
                                .tokens = tokens,
                                .layout = layout,
                                .dtype = ops::kernel_dtype(t[5])};
        const at::Tensor heads[] = {t[2].transpose(1, 2), t[3], t[4].transpose(1, 2)};
        for (std::size_t part = 0; part < 3; ++part) {
          for (std::int64_t dim = 0; dim < 3; ++dim)
            args.stride[part][dim] = heads[part].stride(dim);
        }
        return args;
      },
      kernels::cuda::pack_heads, kernels::reference::pack_heads);
}

TEST_CASE("GPU: pack_heads takes heads of 8 elements", "[gpu][kernels]") {
  Random random(9);
  const kernels::HeadLayout layout{3, 3, 8, false};
  const at::Tensor heads = random({2, 3, 5, 8}, at::kBFloat16);
  compare(
      {heads, heads * 2, heads * 3, random({10, layout.width()}, at::kBFloat16)}, 3, 1,
      [&](const Tensors& t) {
        kernels::PackHeads args{.source = {in(t[0]), in(t[1]), in(t[2])},
                                .stride = {},
                                .table = nullptr,
                                .positions = nullptr,
                                .out = out(t[3]),
                                .batch = 2,
                                .tokens = 5,
                                .layout = layout,
                                .dtype = kernels::DType::bf16};
        for (auto& stride : args.stride) {
          for (std::int64_t dim = 0; dim < 3; ++dim) stride[dim] = heads.stride(dim);
        }
        return args;
      },
      kernels::cuda::pack_heads, kernels::reference::pack_heads);
}

TEST_CASE("GPU: stretch_heads and resize_rows equal their references", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t head_dim = GENERATE(8, 64, 80), heads = GENERATE(1, 12, 16);
  const bool interleaved = GENERATE(false, true), packed = GENERATE(false, true),
             values_too = GENERATE(false, true);
  CAPTURE(c10::toString(type), head_dim, heads, interleaved, packed, values_too);
  Random random(10);
  const std::int64_t tokens = 300, rows = 2 * tokens,
                     wide = ops::stretched_widths(head_dim).query_key;
  const kernels::HeadLayout layout{heads, heads, head_dim, interleaved};
  const at::Tensor stretched = random({rows, heads, wide}, type);
  compare(
      {random({rows, layout.width()}, type), random_places(random, rows, kernels::kAlibiPositions),
       stretched, stretched, stretched},
      2, 1,
      [&](const Tensors& t) {
        return kernels::StretchHeads{
            .qkv = in(t[0]),
            .positions = places(t[1], packed),
            .query = out(t[2]),
            .key = out(t[3]),
            .value = values_too ? out(t[4]) : nullptr,
            .rows = rows,
            .tokens = tokens,
            .stretched = wide,
            .layout = layout,
            .inverse_scale = static_cast<float>(std::sqrt(static_cast<double>(head_dim))),
            .dtype = ops::kernel_dtype(t[0]),
            .model_heads = heads};
      },
      kernels::cuda::stretch_heads, kernels::reference::stretch_heads);
  for (const bool widen : {false, true}) {
    const std::int64_t from = widen ? head_dim : wide, to = widen ? wide : head_dim;
    compare(
        {random({rows, from}, type), random({rows, to}, type)}, 1, 1,
        [&](const Tensors& t) {
          return kernels::ResizeRows{.source = in(t[0]),
                                     .out = out(t[1]),
                                     .rows = rows,
                                     .from = from,
                                     .to = to,
                                     .dtype = ops::kernel_dtype(t[0])};
        },
        kernels::cuda::resize_rows, kernels::reference::resize_rows);
  }
}

}  // namespace
}  // namespace dstrain
