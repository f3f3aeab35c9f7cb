#include <ATen/ops/arange.h>

#include <optional>

#include "engine/kernels/attention/attention_heads.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"
#include "test/gpu/bench.h"

/// How long attention and the kernels around it take at the shapes of real models; hidden, run with
/// `test_gpu "[bench]"`.
namespace dstrain {
namespace {

using namespace test;
using ops::AttentionShape;

struct Work {
  const char* name;
  std::int64_t tokens;
  AttentionShape shape;
  std::optional<ops::StretchedWidths> widths;  ///< other than the default
  bool packed = false;                         ///< the same sequences, as if of different lengths
  [[nodiscard]] std::int64_t rows() const { return shape.batch * tokens; }
};

AttentionShape vit(std::int64_t batch, std::int64_t heads, std::int64_t head_dim) {
  return {.batch = batch, .heads = heads, .kv_heads = heads, .head_dim = head_dim};
}
AttentionShape qwen(std::int64_t batch) {
  return {.batch = batch,
          .heads = 16,
          .kv_heads = 2,
          .head_dim = 128,
          .causal = true,
          .rope_theta = 1e6};
}
AttentionShape bloom(std::int64_t batch, std::int64_t heads, std::int64_t head_dim) {
  return {.batch = batch,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = head_dim,
          .interleaved = true,
          .causal = true,
          .alibi = true};
}
ops::StretchedWidths widths(std::int64_t query_key, std::int64_t value) {
  return {.query_key = query_key, .value = value};
}

std::vector<Work> all_work() {
  return {{"ViT-B 128x197", 197, vit(128, 12, 64), {}},
          {"ViT-H 64x257", 257, vit(64, 16, 80), {}},
          {"Qwen2.5-3B 4x4096", 4096, qwen(4), {}},
          {"Qwen2.5-3B 16x1024", 1024, qwen(16), {}},
          {"Qwen2.5-3B 16x1024, packed", 1024, qwen(16), {}, true},
          {"BLOOM-560m 8x2048, 72", 2048, bloom(8, 16, 64), widths(72, 72)},
          {"BLOOM-560m 8x2048, 80", 2048, bloom(8, 16, 64), widths(80, 80)},
          {"BLOOM-560m 8x2048, 72, values 64", 2048, bloom(8, 16, 64), widths(72, 64)},
          {"BLOOM-560m 8x2048, 80, values 64", 2048, bloom(8, 16, 64), widths(80, 64)},
          {"BLOOM-560m 8x2048, 80, packed", 2048, bloom(8, 16, 64), widths(80, 80), true},
          {"BLOOM-3b 4x2048, 96", 2048, bloom(4, 32, 80), widths(96, 96)},
          {"BLOOM-3b 4x2048, 96, values 80", 2048, bloom(4, 32, 80), widths(96, 80)},
          {"BLOOM-7b1 2x2048, 144", 2048, bloom(2, 32, 128), widths(144, 144)},
          {"BLOOM-7b1 2x2048, 144, values 128", 2048, bloom(2, 32, 128), widths(144, 128)}};
}

ops::Sequences sequences_of(const Work& work) {
  if (!work.packed) return {};
  const auto indices = on_gpu(at::kInt);
  return {.starts = at::arange(0, work.rows() + 1, work.tokens, indices),
          .longest = work.tokens,
          .positions = at::arange(work.rows(), indices).remainder(work.tokens).to(at::kInt)};
}

at::Tensor attend(const at::Tensor& qkv, const Work& work, const ops::Sequences& sequences) {
  return work.widths ? ops::attention_stretched(qkv, work.shape, sequences, *work.widths)
                     : ops::attention(qkv, work.shape, sequences);
}

Run forward(const Work& work) {
  const auto qkv = random({work.rows(), work.shape.qkv_width()});
  return [=, sequences = sequences_of(work)] { (void)attend(qkv, work, sequences); };
}

Run backward(const Work& work) {
  const auto qkv = random({work.rows(), work.shape.qkv_width()}).requires_grad_(true),
             grad = random({work.rows(), work.shape.width()});
  const at::Tensor out = attend(qkv, work, sequences_of(work));
  return [=] {
    qkv.mutable_grad() = at::Tensor();  // else backward adds to the last one's
    out.backward(grad, true);
  };
}

/// Forward counts two products of 2 head_dim operations for each pair of tokens that see each
/// other, backward five; what stands around the softmax (rotary positions, stretched heads, packed
/// gradients) is in the time.
TEST_CASE("bench: attention", "[.bench]") {
  std::puts(
      "| attention | forward ms | TFLOP/s | backward ms | TFLOP/s |\n| --- | --- | --- | --- | --- "
      "|");
  for (const Work& work : all_work()) {
    const auto tokens = static_cast<double>(work.tokens);
    const double pairs = work.shape.causal ? tokens * (tokens + 1) / 2 : tokens * tokens;
    const double flop = 4 * static_cast<double>(work.shape.batch * work.shape.width()) * pairs;
    const double bytes = 2.0 * static_cast<double>(work.rows() * work.shape.qkv_width());
    const double forward_s = seconds_of([&] { return forward(work); }, 2 * bytes),
                 backward_s = seconds_of([&] { return backward(work); }, 4 * bytes);
    std::printf("| %s | %.3f | %.0f | %.3f | %.0f |\n", work.name, 1e3 * forward_s,
                1e-12 * flop / forward_s, 1e3 * backward_s, 2.5e-12 * flop / backward_s);
    std::fflush(stdout);
    CAPTURE(work.name);
    CHECK(flop / forward_s < 989e12);  // the data sheet's dense bf16
    CHECK(2.5 * flop / backward_s < 989e12);
  }
}

kernels::HeadLayout layout_of(const AttentionShape& s) {
  return {s.heads, s.kv_heads, s.head_dim, s.interleaved};
}

/// Gradients as attention leaves them: [batch, tokens, heads, wide] each.
Case pack_case(const Work& work, std::int64_t wide) {
  const AttentionShape& s = work.shape;
  const std::int64_t rows = work.rows(), tokens = work.tokens;
  return {s.rope_theta > 0 ? "pack_heads, turning" : "pack_heads", std::to_string(wide),
          4.0 * static_cast<double>(rows * s.qkv_width()), [=] {
            const auto q = random({rows, s.heads, wide}), k = random({rows, s.kv_heads, wide}),
                       v = random({rows, s.kv_heads, wide}), out = random({rows, s.qkv_width()}),
                       table = random32({tokens, s.head_dim / 2, 2});
            kernels::PackHeads args{{data(q), data(k), data(v)},
                                    {},
                                    s.rope_theta > 0 ? fp32(table) : nullptr,
                                    nullptr,
                                    data(out),
                                    s.batch,
                                    tokens,
                                    layout_of(s),
                                    kDType};
            for (std::size_t part = 0; part < 3; ++part) {
              const std::int64_t row = (part == 0 ? s.heads : s.kv_heads) * wide;
              args.stride[part][0] = tokens * row;
              args.stride[part][1] = wide;
              args.stride[part][2] = row;
            }
            return launch(kernels::cuda::pack_heads, args, {q, k, v, out, table});
          }};
}

Case rotate_case(const Work& work) {
  const AttentionShape& s = work.shape;
  const std::int64_t rows = work.rows(), tokens = work.tokens;
  return {"rotate_heads", std::to_string(s.head_dim),
          4.0 * static_cast<double>(rows * (s.heads + s.kv_heads) * s.head_dim), [=] {
            const auto qkv = random({rows, s.qkv_width()}),
                       table = random32({tokens, s.head_dim / 2, 2});
            return launch<kernels::RotateHeads>(
                kernels::cuda::rotate_heads,
                {data(qkv), fp32(table), nullptr, rows, tokens, layout_of(s), kDType},
                {qkv, table});
          }};
}

Case stretch_case(const Work& work, std::int64_t wide, bool values_too) {
  const AttentionShape& s = work.shape;
  const std::int64_t rows = work.rows(), tokens = work.tokens;
  return {values_too ? "stretch_heads" : "stretch_heads, not values", std::to_string(wide),
          2.0 * static_cast<double>((values_too ? 3 : 2) * rows * s.heads * (s.head_dim + wide)),
          [=] {
            const auto qkv = random({rows, s.qkv_width()}), q = random({rows, s.heads, wide}),
                       k = random({rows, s.heads, wide}), v = random({rows, s.heads, wide});
            return launch<kernels::StretchHeads>(
                kernels::cuda::stretch_heads,
                {data(qkv), nullptr, data(q), data(k), values_too ? data(v) : nullptr, rows, tokens,
                 wide, layout_of(s), 8.0f, kDType},
                {qkv, q, k, v});
          }};
}

Case resize_case(const Work& work, std::int64_t from, std::int64_t to) {
  const std::int64_t rows = work.rows() * work.shape.heads;
  return {"resize_rows", std::to_string(from) + " to " + std::to_string(to),
          2.0 * static_cast<double>(rows * (from + to)), [=] {
            const auto source = random({rows, from}), out = random({rows, to});
            return launch<kernels::ResizeRows>(kernels::cuda::resize_rows,
                                               {data(source), data(out), rows, from, to, kDType},
                                               {source, out});
          }};
}

TEST_CASE("bench: kernels around attention", "[.bench]") {
  print_head();
  const std::vector<Work> all = all_work();
  const Work &vit_b = all[0], &vit_h = all[1], &qwen_3b = all[2], &bloom_560m = all[6];
  print_rows({pack_case(vit_b, 64)}, vit_b.name);
  print_rows({pack_case(vit_h, 80)}, vit_h.name);
  print_rows({rotate_case(qwen_3b), pack_case(qwen_3b, 128)}, qwen_3b.name);
  print_rows({stretch_case(bloom_560m, 80, true), stretch_case(bloom_560m, 80, false),
              resize_case(bloom_560m, 80, 64), resize_case(bloom_560m, 64, 80),
              pack_case(bloom_560m, 64), pack_case(bloom_560m, 80)},
             bloom_560m.name);
}

}  // namespace
}  // namespace dstrain
