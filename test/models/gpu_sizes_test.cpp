#include "engine/models/gpu_sizes.h"

#include <string>

#include "engine/base/error.h"
#include "engine/models/model.h"
#include "engine/recipe/families.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

const GpuLimits kHopper = limits_of_capability(9, 0);

struct Device {
  GpuLimits limits = kHopper;
  int compute_bytes = 4;
  std::int64_t micro = 1;
  int frames = 1;
};

/// "error | hint" of a model on the device; empty: its sizes are taken.
std::string refusal(const ModelConfig& config, const Device& device = {}) {
  Model model = make_model(config, {.classes = 3, .sequence = 16, .frames = device.frames});
  const ModelCost cost = model_cost(model, {.micro_batch = device.micro,
                                            .compute_bytes = device.compute_bytes,
                                            .limits = device.limits});
  try {
    require_gpu_sizes(config, cost);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return std::string(error.what()) + " | " + error.hint();
  }
  return {};
}

ModelConfig with_heads(ModelConfig config, int width, int heads) {
  config.width = width;
  config.heads = heads;
  if (config.kv_heads > 0) config.kv_heads = heads;
  return config;
}

ModelConfig with_head_dim(ModelConfig config, int head_dim) {
  config.head_dim = head_dim;
  return config;
}

std::string all_sizes(const std::string& error) {
  return error + "; parallel.backend: gloo trains on CPUs, which take any size";
}

TEST_CASE("sizes that no kernel of a GPU takes are refused by their key", "[models][gpu_sizes]") {
  const ModelConfig gpt2 = test::small_gpt2_config(), qwen2 = test::small_qwen2_config(),
                    qwen3 = test::small_qwen3_config();
  CHECK(refusal(with_heads(gpt2, 48, 4)) ==
        all_sizes("model.heads: no kernel of a GPU takes heads of 12 elements (model.width over "
                  "model.heads) | use a multiple of 8, such as 8 or 16"));
  CHECK(refusal(with_heads(gpt2, 16, 2)).empty());
  // Both halves of a head turn.
  CHECK(refusal(with_heads(qwen2, 32, 4)) ==
        all_sizes("model.heads: no kernel of a GPU takes heads of 8 elements (model.width over "
                  "model.heads) | use a multiple of 16, such as 16"));
  CHECK(refusal(with_heads(qwen2, 64, 4)).empty());
  // Its heads have norms, which take multiples of 8.
  CHECK(refusal(with_head_dim(with_heads(qwen3, 32, 2), 20)) ==
        all_sizes("model.head_dim: no kernel of a GPU takes heads of 20 elements | use a multiple "
                  "of 16 up to 8192, such as 16 or 32"));
  // A quarter of a head turns, and by ATen.
  CHECK(refusal(with_heads(test::small_neox_config(), 32, 4)).empty());
  // The width decides that of heads, too.
  const std::string width = all_sizes(
      "model.width: no kernel of a GPU takes a width of 36 | use a multiple of 8 up to "
      "8192, such as 32 or 40");
  for (const ModelConfig& config : {gpt2, qwen2, test::small_config(), test::small_bloom_config(),
                                    test::small_mixtral_config()}) {
    CAPTURE(config.name);
    CHECK(refusal(with_heads(config, 36, 3)) == width);
    CHECK(refusal(with_heads(config, 36, 3), {.limits = kCpuLimits}).empty());
  }
  CHECK(refusal(with_heads(test::small_config(), 8208, 27)) ==
        all_sizes("model.width: no kernel of a GPU takes a width of 8208 | use a multiple of 8 up "
                  "to 8192, such as 8192"));
  ModelConfig experts = with_head_dim(with_heads(test::small_mixtral_config(), 32, 2), 16);
  experts.experts = 64;
  experts.experts_per_token = 33;
  CHECK(refusal(experts) ==
        all_sizes("model.experts_per_token: no kernel of a GPU takes 33 experts for a token | use "
                  "at most 32"));
  experts.experts_per_token = 32;
  CHECK(refusal(experts).empty());
}

TEST_CASE("flash attention, which has the wide heads of 16-bit types, has a widest one",
          "[models][gpu_sizes]") {
  const ModelConfig wide = with_head_dim(with_heads(test::small_qwen3_config(), 32, 2), 272);
  CHECK(refusal(wide, {.compute_bytes = 2}) ==
        all_sizes("model.head_dim: no kernel of a GPU takes heads of 272 elements | use a multiple "
                  "of 16 up to 256, such as 256"));
  CHECK(refusal(wide).empty());
  CHECK(refusal(wide, {.limits = limits_of_capability(7, 5), .compute_bytes = 2}).empty());
  // Gemma 2 has soft caps, which no library has.
  CHECK(refusal(with_head_dim(with_heads(test::small_gemma2_config(), 32, 2), 272),
                {.compute_bytes = 2})
            .empty());
  // Linear biases take room in the heads.
  const ModelConfig bloom = test::small_bloom_config();
  CHECK(refusal(with_heads(bloom, 512, 2), {.compute_bytes = 2}) ==
        all_sizes("model.heads: no kernel of a GPU takes heads of 256 elements (model.width over "
                  "model.heads) | use a multiple of 8 up to 248, such as 248"));
  CHECK(refusal(with_heads(bloom, 496, 2), {.compute_bytes = 2}).empty());
}

TEST_CASE("the images of a micro-batch that a GPU takes at once are counted by frame",
          "[models][gpu_sizes]") {
  ModelConfig config;
  config.name = "cnn-basic";
  config.image_size = 32;
  config.channels = 3;
  CHECK(refusal(config, {.micro = 65535}).empty());
  CHECK(
      refusal(config, {.micro = 65536}) ==
      all_sizes("batch.micro: no kernel of a GPU takes 65536 images at once | use at most 65535"));
  config.name = "cnn-lstm";
  config.trunk = "mobilenet-v3-small";
  CHECK(refusal(config, {.micro = 16383, .frames = 4}).empty());
  CHECK(
      refusal(config, {.micro = 16384, .frames = 4}) ==
      all_sizes("batch.micro: no kernel of a GPU takes 65536 images at once | use at most 65535"));
}

TEST_CASE("GPUs take every published model", "[models][gpu_sizes]") {
  for (const ModelFamily& family : model_families()) {
    for (const PublishedModel& published : family.published) {
      ModelConfig config;
      config.name = published.name;
      CAPTURE(config.name);
      if (family.joins) continue;  // made of others
      CHECK(refusal(config, {.limits = limits_of_capability(8, 0), .compute_bytes = 2}).empty());
    }
  }
}

}  // namespace
}  // namespace dstrain
