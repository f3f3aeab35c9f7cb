#include <array>
#include <string>
#include <vector>

#include "engine/kernels/attention/attention_backends.h"
#include "engine/kernels/attention/short_attention.h"
#include "engine/kernels/conv/direct_kernel.h"
#include "engine/kernels/gpu.h"
#include "engine/kernels/norm/kernels.h"
#include "test/support/catch.h"

/// Every launch that may ask for more shared memory than a block has on every GPU: it fits, or goes
/// another way. Shapes are those of the recipes of the tree.
namespace dstrain {
namespace {

using namespace kernels;
using ops::AttentionShape;
using ops::Backend;

const std::vector<GpuLimits> kCapabilities = {
    limits_of_capability(7, 5), limits_of_capability(8, 0), limits_of_capability(8, 6),
    limits_of_capability(8, 9), limits_of_capability(9, 0), limits_of_capability(10, 0),
    limits_of_capability(12, 0)};

TEST_CASE("short attention fits the shared memory of each card, or a library attends",
          "[kernels]") {
  struct Model {
    std::int64_t tokens, width;
  };
  // ViT-Base and ViT-Huge, whole, and with a part of their tokens.
  const Model model = GENERATE(Model{197, 64}, Model{257, 80}, Model{50, 64}, Model{320, 64},
                               Model{320, 80}, Model{1, 80});
  const AttentionShape shape{.batch = 2, .heads = 4, .kv_heads = 4, .head_dim = model.width};
  for (const GpuLimits& limits : kCapabilities) {
    CAPTURE(model.tokens, model.width, limits.major, limits.minor);
    const Backend backend = ops::gpu_backend(
        at::kHalf, shape, {.tokens = model.tokens, .width = model.width}, false, limits);
    if (backend != Backend::own) {
      // 64 KiB have no room for 257 tokens of 80, 99 KiB none for 320.
      CHECK(model.tokens >= (limits.major == 7 ? 257 : 320));
      CHECK(limits.shared_block < 128 * 1024);
      CHECK((backend == Backend::efficient) == (limits.major == 7));
      continue;
    }
    CHECK(short_attention_bytes(model.tokens, model.width,
                                short_attention_stages(model.tokens, model.width, limits)) <=
          limits.shared_block);
    CHECK(short_attention_backward_bytes(
              model.tokens, model.width,
              short_attention_backward_stages(model.tokens, model.width, limits)) <=
          limits.shared_block);
  }
}

TEST_CASE("ViT attends by our own kernels where its heads fit", "[kernels]") {
  struct Case {
    int major, minor;
    bool base_staged, base_backward_staged, huge, huge_staged;
  };
  for (const Case& one :
       {Case{7, 5, false, false, false, false}, Case{8, 0, true, true, true, true},
        Case{8, 6, true, true, true, false}, Case{8, 9, true, true, true, false},
        Case{9, 0, true, true, true, true}, Case{12, 0, true, true, true, false}}) {
    CAPTURE(one.major, one.minor);
    const GpuLimits limits = limits_of_capability(one.major, one.minor);
    CHECK(short_attention_max_tokens(64, limits) >= 197);
    CHECK(short_attention_stages(197, 64, limits) == one.base_staged);
    CHECK(short_attention_backward_stages(197, 64, limits) == one.base_backward_staged);
    CHECK((short_attention_max_tokens(80, limits) >= 257) == one.huge);
    CHECK(short_attention_stages(257, 80, limits) == one.huge_staged);
    CHECK_FALSE(short_attention_backward_stages(257, 80, limits));
  }
}

TEST_CASE("attention of language models goes by a library that the card has", "[kernels]") {
  const AttentionShape causal{
      .batch = 1, .heads = 16, .kv_heads = 2, .head_dim = 128, .causal = true};
  for (const GpuLimits& limits : kCapabilities) {
    CAPTURE(limits.major, limits.minor);
    const auto backend = [&](at::ScalarType type, bool packed) {
      return ops::gpu_backend(type, causal, {.tokens = 1024, .width = 128}, packed, limits);
    };
    CHECK(backend(at::kFloat, false) == Backend::efficient);
    CHECK(backend(at::kHalf, true) == (limits.major == 7 ? Backend::efficient : Backend::flash));
    CHECK(backend(at::kHalf, false) == (limits.major == 7    ? Backend::efficient
                                        : limits.major == 9  ? Backend::cudnn
                                        : limits.major == 10 ? Backend::cudnn
                                                             : Backend::flash));
  }
}

TEST_CASE("backward of norms fits the shared memory of each card", "[kernels]") {
  // Widths of ViT, BLOOM and Qwen, and the widest that the kernels take.
  constexpr std::array<std::int64_t, 14> kWidths = {64,   192,  768,  896,  1024, 1280, 1536,
                                                    2048, 2560, 3072, 3584, 4096, 5120, 8192};
  std::int64_t unstaged = 0;
  for (const std::int64_t width : kWidths) {
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      const std::size_t staged = norm_backward_bytes(width, dtype, true),
                        held = norm_backward_bytes(width, dtype, false);
      CAPTURE(width, static_cast<int>(dtype), staged, held);
      CHECK(held <= kernels::cuda::kMinSharedBlock);
      for (const GpuLimits& limits : kCapabilities) {
        CAPTURE(limits.major, limits.minor);
        if (staged <= limits.shared_block) continue;
        CHECK(limits.major == 7);
        ++unstaged;
      }
    }
  }
  CHECK(norm_backward_bytes(768, DType::f16, true) == 73728);
  CHECK(norm_backward_bytes(768, DType::f16, false) == 24576);
  CHECK(norm_backward_bytes(8192, DType::f32, true) == 98304);
  CHECK(norm_backward_bytes(1024, DType::f16, true) == 49152);
  CHECK(unstaged == 3 * 7);  // 768, 1280, 1536, 2560, 3072, 5120, 8192
}

TEST_CASE("backward of direct convolutions fits the shared memory of each card", "[kernels]") {
  for (const auto& [kernel, stride, out] :
       {std::array{7, 2, 64}, std::array{3, 1, 64}, std::array{3, 2, 32}}) {
    DirectShape shape{};
    shape.kernel = kernel;
    shape.stride = stride;
    shape.out = out;
    for (const GpuLimits& limits : kCapabilities) {
      CAPTURE(kernel, stride, out, limits.major, limits.minor);
      const int columns = direct_backward_columns(shape, limits);
      CHECK(direct_backward_bytes(shape, columns) <= limits.shared_block);
      CHECK(columns == (kernel == 7 && limits.major == 7 ? kNarrowDirectColumns : kDirectColumns));
    }
    if (kernel == 7) CHECK(direct_backward_bytes(shape, kDirectColumns) == 67968);
  }
}

}  // namespace
}  // namespace dstrain
