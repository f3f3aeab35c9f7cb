#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/kernels/attention/attention_backends.h"
#include "engine/kernels/attention/attention_heads.h"
#include "engine/kernels/attention/composed_attention.h"
#include "engine/kernels/attention/short_attention.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"
#include "test/kernels/attention_example.h"
#include "test/kernels/devices.h"
#include "test/kernels/plain_attention.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using ops::AttentionShape;
using Lengths = std::vector<std::int64_t>;

struct Model {
  const char* name;
  AttentionShape shape;
};
const AttentionShape kQwen3B{
    .heads = 16, .kv_heads = 2, .head_dim = 128, .causal = true, .rope_theta = 1e6};

/// Real ones on a GPU.
std::vector<Model> models(at::Device device) {
  const auto bloom = [](std::int64_t heads, std::int64_t head_dim) {
    return AttentionShape{.heads = heads,
                          .kv_heads = heads,
                          .head_dim = head_dim,
                          .interleaved = true,
                          .causal = true,
                          .alibi = true};
  };
  if (device.is_cuda()) {
    return {{"ViT-B", {.heads = 12, .kv_heads = 12, .head_dim = 64}},
            {"ViT-H", {.heads = 16, .kv_heads = 16, .head_dim = 80}},
            {"Qwen2.5-3B", kQwen3B},
            {"Qwen2.5-0.5B",
             {.heads = 14, .kv_heads = 2, .head_dim = 64, .causal = true, .rope_theta = 1e6}},
            {"Mistral 7B, short window",
             {.heads = 32,
              .kv_heads = 8,
              .head_dim = 128,
              .causal = true,
              .rope_theta = 1e4,
              .window = 100}},
            {"Phi-4-mini",
             {.heads = 24,
              .kv_heads = 8,
              .head_dim = 128,
              .causal = true,
              .rope_theta = 1e4,
              .rotary = 96}},
            {"Gemma 3 1B, short window",
             {.heads = 4,
              .kv_heads = 1,
              .head_dim = 256,
              .causal = true,
              .rope_theta = 1e4,
              .window = 100}},
            {"Gemma 2 2B, low caps",
             {.heads = 8,
              .kv_heads = 4,
              .head_dim = 256,
              .causal = true,
              .rope_theta = 1e4,
              .scale = 0.05,
              .softcap = 2}},
            {"Gemma 2 27B, low caps, short window",
             {.heads = 32,
              .kv_heads = 16,
              .head_dim = 128,
              .causal = true,
              .rope_theta = 1e4,
              .window = 100,
              .scale = 1.0 / 12,
              .softcap = 2}},
            {"BLOOM-560m", bloom(16, 64)},
            {"BLOOM-3b", bloom(32, 80)},
            {"BLOOM-7b1", bloom(32, 128)}};
  }
  AttentionShape interleaved = bloom(4, 16);
  interleaved.rope_theta = 1e4;
  return {
      {"plain", {.heads = 3, .kv_heads = 3, .head_dim = 8}},
      {"causal", {.heads = 3, .kv_heads = 3, .head_dim = 8, .causal = true}},
      {"shared", {.heads = 6, .kv_heads = 2, .head_dim = 8, .causal = true}},
      {"rotary", {.heads = 4, .kv_heads = 2, .head_dim = 16, .causal = true, .rope_theta = 1e4}},
      {"linear", {.heads = 6, .kv_heads = 6, .head_dim = 8, .causal = true, .alibi = true}},
      {"window",
       {.heads = 4, .kv_heads = 2, .head_dim = 16, .causal = true, .rope_theta = 1e4, .window = 6}},
      {"scale", {.heads = 3, .kv_heads = 3, .head_dim = 8, .causal = true, .scale = 0.6}},
      {"soft caps", {.heads = 3, .kv_heads = 3, .head_dim = 8, .causal = true, .softcap = 1.5}},
      {"soft caps of all keys", {.heads = 3, .kv_heads = 3, .head_dim = 8, .softcap = 1.5}},
      {"soft caps and window",
       {.heads = 4,
        .kv_heads = 2,
        .head_dim = 16,
        .causal = true,
        .rope_theta = 1e4,
        .window = 6,
        .scale = 0.4,
        .softcap = 1.5}},
      {"part of a head turns",
       {.heads = 4,
        .kv_heads = 2,
        .head_dim = 16,
        .causal = true,
        .rope_theta = 1e4,
        .rotary = 12}},
      {"interleaved", interleaved}};
}

/// What long sequences are tried in: the formula takes long.
at::ScalarType long_type(at::Device device) {
  return device.is_cuda() ? test::short_type(device) : at::kFloat;
}

TEST_CASE("attention equals the softmax formula, the packed gradient included", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16, at::kHalf})));
  const auto model = GENERATE_COPY(from_range(models(device)));
  const std::int64_t tokens = GENERATE_COPY(
      from_range(device.is_cuda() ? Lengths{33, 197, 512, 1000} : Lengths{1, 5, 33, 197, 300}));
  if (tokens > 197 && dtype != long_type(device)) return;
  CAPTURE(device.str(), c10::toString(dtype), model.name, tokens);
  AttentionShape shape = model.shape;
  shape.batch = device.is_cpu() && tokens > 197 ? 1 : 2;
  test::AttentionExample(device, shape, Lengths(to_index(shape.batch), tokens), dtype)
      .require_formula([&](const at::Tensor& qkv) { return ops::attention(qkv, shape); });
}

TEST_CASE("packed sequences do not see each other, empty ones do no harm", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16, at::kHalf})));
  const auto model = GENERATE_COPY(from_range(models(device)));
  const Lengths lengths = GENERATE_COPY(
      from_range(device.is_cuda() ? std::vector<Lengths>{{26, 1, 33, 6},
                                                         {5, 33, 28},
                                                         {5, 197, 192},
                                                         {505, 1, 512, 6},
                                                         {993, 1, 1000, 6}}
                                  : std::vector<Lengths>{{7, 1, 20, 4}, {32}, {1, 31}}));
  if (lengths.back() == 6 && dtype != long_type(device)) return;
  CAPTURE(device.str(), c10::toString(dtype), model.name, lengths);
  AttentionShape shape = model.shape;
  shape.batch = 2;  // sequences go over its borders
  const ops::Sequences sequences = test::pack(lengths, 3, device);
  test::AttentionExample(device, shape, lengths, dtype).require_formula([&](const at::Tensor& qkv) {
    return ops::attention(qkv, shape, sequences);
  });
}

TEST_CASE("packed attention takes sequences of one token", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  AttentionShape shape = kQwen3B;
  shape.batch = 1;
  const Lengths lengths(40, 1);
  const ops::Sequences sequences = test::pack(lengths, 2, device);
  test::AttentionExample(device, shape, lengths, test::short_type(device))
      .require_formula(
          [&](const at::Tensor& qkv) { return ops::attention(qkv, shape, sequences); });
}

TEST_CASE("backward by groups of heads makes the gradients of each group alone", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const bool packed = GENERATE(false, true);
  // 294,912 rows times heads on a CPU.
  AttentionShape shape{.heads = device.is_cuda() ? 144 : 2304,
                       .kv_heads = 4,
                       .head_dim = device.is_cuda() ? 64 : 8,
                       .causal = true,
                       .rope_theta = 1e4};
  shape.batch = 2;
  const std::int64_t tokens = device.is_cuda() ? 8192 : 64;
  const Lengths lengths = {tokens - 50, 100, tokens - 50};
  const ops::Sequences sequences = packed ? test::pack(lengths, 2, device) : ops::Sequences{};
  REQUIRE(ops::attention_head_groups(shape, 2 * tokens) == (device.is_cuda() ? 4 : 2));
  test::Random random(5, device);
  const at::ScalarType type = test::short_type(device);
  const at::Tensor qkv = random({2 * tokens, shape.qkv_width()}, type),
                   dy = random({2 * tokens, shape.width()}, type);
  const auto gradient = [&](const at::Tensor& rows, const at::Tensor& of_out,
                            const AttentionShape& heads) {
    const at::Tensor x = test::leaf(rows);
    ops::attention(x, heads, sequences).backward(of_out);
    return x.grad();
  };
  const ops::Heads all = ops::split_heads(gradient(qkv, dy, shape), shape, {}),
                   in = ops::split_heads(qkv, shape, {});
  AttentionShape one = shape;  // the heads of one key
  one.heads = shape.heads / shape.kv_heads;
  one.kv_heads = 1;
  REQUIRE(ops::attention_head_groups(one, 2 * tokens) == 1);
  for (std::int64_t key = 0; key < shape.kv_heads; ++key) {
    CAPTURE(device.str(), packed, key);
    const at::Tensor rows = at::empty({2 * tokens, one.qkv_width()}, qkv.options());
    const ops::Heads own = ops::split_heads(rows, one, {});
    own[0].copy_(in[0].narrow(1, key * one.heads, one.heads));
    own[1].copy_(in[1].narrow(1, key, 1));
    own[2].copy_(in[2].narrow(1, key, 1));
    const std::int64_t width = one.width();
    const ops::Heads alone = ops::split_heads(
        gradient(rows, dy.narrow(1, key * width, width).contiguous(), one), one, {});
    const ops::Heads of_all = {all[0].narrow(1, key * one.heads, one.heads),
                               all[1].narrow(1, key, 1), all[2].narrow(1, key, 1)};
    for (std::size_t part = 0; part < 3; ++part) {
      CAPTURE(part);
      // A GPU's sums over keys have no order.
      if (device.is_cuda())
        REQUIRE(test::relative_error(of_all[part], alone[part]) < 1e-2);
      else
        REQUIRE(at::equal(of_all[part], alone[part]));
    }
  }
}

/// What a GPU does with linear biases in 16 bits, on a CPU with the references of its kernels.
TEST_CASE("heads stretched for linear biases give the same attention", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype = GENERATE_COPY(from_range(
      device.is_cuda() ? std::vector<at::ScalarType>{test::short_type(device)}
                       : std::vector<at::ScalarType>{at::kFloat, at::kBFloat16, at::kHalf}));
  const auto model = GENERATE_COPY(from_range(models(device)));
  if (!model.shape.alibi || model.shape.heads > 16) return;
  const Lengths lengths =
      GENERATE_COPY(from_range(device.is_cuda() ? std::vector<Lengths>{{197}, {2048}}
                                                : std::vector<Lengths>{{5, 1, 10}, {300, 1, 600}}));
  if (lengths[0] > 197 && dtype != long_type(device)) return;
  CAPTURE(device.str(), c10::toString(dtype), model.name, lengths);
  AttentionShape shape = model.shape;
  shape.batch = 1;
  const ops::Sequences sequences =
      lengths.size() > 1 ? test::pack(lengths, 1, device) : ops::Sequences{};
  const test::AttentionExample example(device, shape, lengths, dtype, /*stretched=*/true);
  for (const std::int64_t width : {shape.head_dim + 8, shape.head_dim + 16}) {
    for (const std::int64_t value : {width, shape.head_dim}) {
      CAPTURE(width, value);
      example.require_formula([&](const at::Tensor& qkv) {
        return ops::attention_stretched(qkv, shape, sequences,
                                        {.query_key = width, .value = value});
      });
    }
  }
}

TEST_CASE("stretched heads hold slopes and positions so that biases are exact sums",
          "[kernels][cpu]") {
  const std::int64_t heads = 12, dim = 16, rows = 4;  // four slopes that are no powers of two
  const auto dtype = GENERATE(at::kBFloat16, at::kHalf);
  const AttentionShape shape{
      .batch = 1, .heads = heads, .kv_heads = heads, .head_dim = dim, .causal = true};
  ops::Sequences sequences = test::pack({rows});
  const int places[] = {0, 255, 256, 65535};
  std::copy(places, places + 4, sequences.positions.mutable_data_ptr<int>());
  test::Random random(5);
  const at::Tensor qkv = random({rows, shape.qkv_width()}, dtype);
  const ops::Heads stretched =
      ops::stretch_heads(qkv, shape, sequences, {.query_key = 32, .value = 32});
  const ops::Heads own = ops::split_heads(qkv, shape, sequences);
  for (std::size_t part = 0; part < 3; ++part) {
    REQUIRE(stretched[part].narrow(3, 0, dim).equal(own[part]));
    REQUIRE(stretched[part].narrow(3, dim + 4, 12).eq(0).all().item<bool>());
  }
  REQUIRE(stretched[2].narrow(3, dim, 4).eq(0).all().item<bool>());
  const at::Tensor q = stretched[0].narrow(3, dim, 4).to(at::kDouble),
                   k = stretched[1].narrow(3, dim, 4).to(at::kDouble);
  const at::Tensor biases = at::matmul(q, k.transpose(2, 3)) / 4.0,
                   exact = test::plain_slopes(heads).view({1, heads, 1, 1}) *
                           sequences.positions.to(at::kDouble);
  // Two roundings of a slope, each by 2^-9 at most in bf16: 2^-9 of 2^-9; fp16's second one may be
  // subnormal.
  REQUIRE(((biases - exact).abs() <= exact * 0x1p-17).all().item<bool>());
}

TEST_CASE("slopes are those of BLOOM", "[kernels][cpu]") {
  for (const std::int64_t heads : {1, 2, 6, 7, 12, 16, 32, 112}) {
    const at::Tensor expected = test::plain_slopes(heads);
    for (std::int64_t head = 0; head < heads; ++head) {
      CAPTURE(heads, head);
      REQUIRE(kernels::alibi_slope(head, heads) ==
              Approx(expected[head].item<double>()).epsilon(test::gamma(64, 0x1p-53)));
    }
  }
  REQUIRE(kernels::alibi_slope(0, 16) == Approx(std::sqrt(0.5)));
  REQUIRE(kernels::alibi_slope(5, 6) == Approx(std::pow(2.0, -3.0)));
}

TEST_CASE("scaled rotary positions slow the slow pairs only, as Llama 3.1 has it",
          "[kernels][cpu]") {
  const ops::AttentionShape plain{.head_dim = 64, .rope_theta = 5e5};
  ops::AttentionShape scaled = plain;
  scaled.rope_scaling.factor = 32;
  for (std::int64_t pair = 0; pair < 32; ++pair) {
    CAPTURE(pair);
    const double frequency = std::pow(5e5, -static_cast<double>(pair) / 32);
    REQUIRE(ops::rotary_frequency(plain, pair) == Approx(frequency).epsilon(1e-14));
    const double turns = 8192 * frequency / (2 * std::numbers::pi);
    if (turns > 4) REQUIRE(ops::rotary_frequency(scaled, pair) == frequency);
    if (turns < 1)
      REQUIRE(ops::rotary_frequency(scaled, pair) == Approx(frequency / 32).epsilon(1e-14));
  }
  // One between turns 1.5 to 3 times.
  const double between = ops::rotary_frequency(scaled, 16) / ops::rotary_frequency(plain, 16);
  REQUIRE((between > 1.0 / 32 && between < 1));
}

TEST_CASE("attention turns queries and keys by the scaled positions", "[kernels][cpu]") {
  ops::AttentionShape shape{.batch = 2,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .causal = true,
                            .rope_theta = 1e4,
                            // The first pairs are left alone, mixed, and slowed from the third on.
                            .rope_scaling = {.factor = 8, .positions = 40}};
  test::Random random(11);
  const at::Tensor qkv = random({2 * 20, shape.qkv_width()}), dy = random({2 * 20, shape.width()});
  const at::Tensor x = test::leaf(qkv), x64 = test::exact(qkv);
  const at::Tensor y = ops::attention(x.clone(), shape);
  const at::Tensor y64 = test::plain_attention(x64, shape, {20, 20});
  y.backward(dy);
  y64.backward(dy.to(at::kDouble));
  CHECK((y - y64).abs().max().item<double>() < 1e-5);
  CHECK((x.grad() - x64.grad()).abs().max().item<double>() < 1e-5);
  shape.rope_scaling = {};
  CHECK((ops::attention(qkv.clone(), shape) - y64).abs().max().item<double>() > 1e-3);
}

TEST_CASE("longer samples turn by other frequencies where positions have two kinds",
          "[kernels][cpu]") {
  const ops::AttentionShape shape{.batch = 1,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 16,
                                  .causal = true,
                                  .rope_theta = 1e4,
                                  .rope_scaling = {.positions = 12,
                                                   .short_divisors = {1, 1.1, 1.2, 1.5},
                                                   .long_divisors = {1, 2, 4, 8},
                                                   .amplitude = 1.19},
                                  .rotary = 8};
  for (const std::int64_t tokens : {5, 12, 13, 40}) {
    CAPTURE(tokens);
    test::Random random(11);
    const at::Tensor qkv = random({tokens, shape.qkv_width()}),
                     dy = random({tokens, shape.width()});
    const at::Tensor x = test::leaf(qkv), x64 = test::exact(qkv);
    const at::Tensor y = ops::attention(x.clone(), shape);
    const at::Tensor y64 = test::plain_attention(x64, shape, {tokens});
    y.backward(dy);
    y64.backward(dy.to(at::kDouble));
    CHECK((y - y64).abs().max().item<double>() < 1e-5);
    CHECK((x.grad() - x64.grad()).abs().max().item<double>() < 2e-5);
  }
}

TEST_CASE("a GPU attends within windows by libraries that have them", "[kernels][cpu]") {
  const ops::AttentionShape shape{
      .heads = 32, .kv_heads = 8, .head_dim = 128, .causal = true, .window = 100};
  const ops::HeadsSize size{.tokens = 512, .width = 128};
  const GpuLimits hopper{.major = 9, .flash_attention = true};
  for (const bool packed : {false, true}) {
    CHECK(ops::gpu_backend(at::kBFloat16, shape, size, packed, hopper) == ops::Backend::flash);
    CHECK(ops::gpu_backend(at::kBFloat16, shape, size, packed, {}) == ops::Backend::efficient);
    CHECK(ops::gpu_backend(at::kFloat, shape, size, packed, hopper) == ops::Backend::efficient);
  }
}

TEST_CASE("soft caps of scores are taken by our own products alone", "[kernels][cpu]") {
  const GpuLimits hopper{.major = 9, .flash_attention = true};
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const bool packed : {false, true})
      for (const std::int64_t window : {0, 100})
        CHECK(ops::gpu_backend(type,
                               {.heads = 8,
                                .kv_heads = 4,
                                .head_dim = 64,
                                .causal = true,
                                .window = window,
                                .softcap = 50},
                               {.tokens = 64, .width = 64}, packed,
                               hopper) == ops::Backend::composed);
}

TEST_CASE("queries of long samples attend some after the others", "[kernels][cpu]") {
  // 932 queries at once, then 68; a window that begins in the middle, and sequences that end there.
  CHECK(ops::composed_queries(8, 4096, 4096) == 1024);
  CHECK(ops::composed_queries(1 << 14, 5, 600) == 3);
  CHECK(ops::composed_queries(1 << 25, 5, 600) == 1);
  const ops::AttentionShape shape{.batch = 1,
                                  .heads = 36,
                                  .kv_heads = 18,
                                  .head_dim = 8,
                                  .causal = true,
                                  .window = 700,
                                  .softcap = 1.5};
  constexpr std::int64_t kTokens = 1000;
  REQUIRE(ops::composed_queries(shape.heads, kTokens, kTokens) < kTokens);
  test::Random random(3);
  const at::Tensor qkv = random({kTokens, shape.qkv_width()}),
                   dy = random({kTokens, shape.width()});
  for (const Lengths& lengths : {Lengths{kTokens}, Lengths{300, 1, 699}}) {
    const ops::Sequences sequences =
        lengths.size() > 1 ? test::pack(lengths, 2, at::kCPU) : ops::Sequences{};
    const at::Tensor x = test::leaf(qkv), x64 = test::exact(qkv);
    const at::Tensor y = ops::attention(x.clone(), shape, sequences),
                     y64 = test::plain_attention(x64, shape, lengths);
    y.backward(dy);
    y64.backward(dy.to(at::kDouble));
    CHECK(test::relative_error(y, y64) < 1e-6);
    CHECK(test::relative_error(x.grad(), x64.grad()) < 1e-6);
  }
}

TEST_CASE("our own attention takes as many tokens as a card's shared memory holds",
          "[kernels][cpu]") {
  struct Case {
    int major, minor;
    std::int64_t of_64, of_80;
  };
  // ViT-Base has 197 tokens of heads of 64, ViT-Huge 257 of heads of 80.
  for (const Case& one : {Case{7, 5, 208, 176}, Case{8, 0, 320, 320}, Case{8, 6, 320, 272},
                          Case{8, 9, 320, 272}, Case{9, 0, 320, 320}, Case{12, 0, 320, 272}}) {
    CAPTURE(one.major, one.minor);
    const GpuLimits limits = limits_of_capability(one.major, one.minor);
    CHECK(kernels::short_attention_max_tokens(64, limits) == one.of_64);
    CHECK(kernels::short_attention_max_tokens(80, limits) == one.of_80);
    CHECK(kernels::short_attention_max_tokens(128, limits) == 0);
  }
}

TEST_CASE("stretched widths are those measured", "[kernels][cpu]") {
  REQUIRE(ops::stretched_widths(64).query_key == 80);
  REQUIRE(ops::stretched_widths(80).query_key == 96);
  REQUIRE(ops::stretched_widths(128).query_key == 144);
  REQUIRE(ops::stretched_widths(72).query_key == 80);
}

/// The reference kernels against ATen on the CPU.
TEST_CASE("references of rotate_heads and pack_heads", "[kernels][reference][cpu]") {
  const bool interleaved = GENERATE(false, true), packed = GENERATE(false, true);
  CAPTURE(interleaved, packed);
  test::Random random(6);
  const AttentionShape shape{.batch = 2,
                             .heads = 3,
                             .kv_heads = interleaved ? 3 : 1,
                             .head_dim = 16,
                             .interleaved = interleaved,
                             .causal = true,
                             .rope_theta = 1e4};
  const std::int64_t tokens = 6, rows = 2 * tokens;
  const ops::Sequences sequences = packed ? test::pack({5, 7}) : ops::Sequences{};
  const at::Tensor qkv = random({rows, shape.qkv_width()});
  const at::Tensor turned = qkv.clone();
  ops::rotate_heads(turned, shape, sequences);
  REQUIRE(!turned.equal(qkv));

  const at::Tensor table = at::empty({tokens + 1, 8, 2});
  for (std::int64_t position = 0; position <= tokens; ++position) {
    for (std::int64_t i = 0; i < 8; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(1e4, -static_cast<double>(i) / 8);
      table[position][i][0] = std::cos(angle);
      table[position][i][1] = std::sin(angle);
    }
  }
  const std::int32_t* positions =
      packed ? sequences.positions.const_data_ptr<std::int32_t>() : nullptr;
  const kernels::HeadLayout layout{shape.heads, shape.kv_heads, shape.head_dim, interleaved};
  const at::Tensor reference = qkv.clone();
  kernels::reference::rotate_heads({.qkv = reference.mutable_data_ptr(),
                                    .table = table.const_data_ptr<float>(),
                                    .positions = positions,
                                    .rows = rows,
                                    .tokens = tokens,
                                    .layout = layout,
                                    .dtype = kernels::DType::f32});
  // Each turn sums two products; turned pairs are up to sqrt(2) larger, with tables rounded twice.
  const double turn_error = 2 * test::gamma(3) * qkv.abs().max().item<double>();
  const auto within = [](const at::Tensor& expected, double allowed) {
    return test::Bounded(expected.to(at::kDouble),
                         at::zeros_like(expected, at::kDouble).fill_(allowed));
  };
  REQUIRE(test::far(reference, within(turned, 2 * turn_error)) == "");

  // Back, from heads in another order of dimensions and wider than needed.
  ops::Heads heads = ops::split_heads(turned, shape, sequences);
  const at::Tensor out = at::empty_like(qkv);
  kernels::PackHeads args{.source = {},
                          .stride = {},
                          .table = table.const_data_ptr<float>(),
                          .positions = positions,
                          .out = out.mutable_data_ptr(),
                          .batch = heads[0].size(0),
                          .tokens = heads[0].size(2),
                          .layout = layout,
                          .dtype = kernels::DType::f32};
  for (std::size_t part = 0; part < 3; ++part) {
    const at::Tensor wide = at::empty(
        {heads[part].size(1), heads[part].size(0), heads[part].size(2), shape.head_dim + 8});
    heads[part] = wide.transpose(0, 1).narrow(3, 0, shape.head_dim).copy_(heads[part]);
    args.source[part] = heads[part].const_data_ptr();
    for (std::int64_t dim = 0; dim < 3; ++dim) args.stride[part][dim] = heads[part].stride(dim);
  }
  kernels::reference::pack_heads(args);
  const test::Bounded back = within(qkv, 5 * turn_error);
  REQUIRE(test::far(out, back) == "");
  const at::Tensor found = at::empty_like(qkv);
  ops::pack_heads(heads, found, shape, sequences);
  REQUIRE(test::far(found, back) == "");
  const at::Tensor in_place = turned.clone();
  ops::pack_heads(ops::split_heads(in_place, shape, sequences), in_place, shape, sequences);
  REQUIRE(test::far(in_place, back) == "");
  args.table = nullptr;
  kernels::reference::pack_heads(args);
  REQUIRE(out.equal(turned));
}

TEST_CASE("wrong shapes of attention are refused", "[kernels][cpu]") {
  test::Random random(7);
  const AttentionShape good{.batch = 1, .heads = 4, .kv_heads = 2, .head_dim = 8, .causal = true};
  const at::Tensor qkv = random({6, good.qkv_width()});
  const auto refused = [&](const auto& change) {
    AttentionShape shape = good;
    ops::Sequences sequences = test::pack({2, 4});
    change(shape, sequences);
    REQUIRE_THROWS_AS(ops::attention(qkv, shape, sequences), Error);
  };
  REQUIRE_NOTHROW(ops::attention(qkv, good, test::pack({2, 4})));
  refused([](AttentionShape& shape, auto&) { shape.heads = 3; });
  refused([](AttentionShape& shape, auto&) { shape.batch = 4; });
  refused([](AttentionShape& shape, auto&) { shape.interleaved = true; });
  refused([](AttentionShape& shape, auto&) { shape.alibi = true, shape.causal = false; });
  refused([](AttentionShape& shape, auto&) { shape.window = 3, shape.causal = false; });
  refused([](AttentionShape& shape, auto&) { shape.rope_theta = 1e4, shape.rotary = 3; });
  refused([](AttentionShape& shape, auto&) { shape.rope_theta = 1e4, shape.rotary = 10; });
  refused([](auto&, ops::Sequences& sequences) { sequences.longest = 0; });
  refused([](auto&, ops::Sequences& sequences) { sequences.positions.reset(); });
  refused(
      [](auto&, ops::Sequences& sequences) { sequences.starts = sequences.starts.to(at::kLong); });
}

}  // namespace
}  // namespace dstrain
