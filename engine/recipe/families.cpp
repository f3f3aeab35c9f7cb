#include "engine/recipe/families.h"

#include <fmt/format.h>

#include <deque>
#include <vector>

#include "engine/recipe/decoder_models.h"
#include "engine/recipe/image_models.h"
#include "engine/recipe/text.h"
#include "engine/recipe/vision_models.h"

namespace dstrain {
namespace {

using enum Modality;

constexpr ModelSize kWidth = {
    "width", {"hidden_size"}, &ModelConfig::width, &ModelSizes::width, 65536};
constexpr ModelSize kLayers = {
    "layers", {"num_hidden_layers"}, &ModelConfig::layers, &ModelSizes::layers, 4096};
constexpr ModelSize kHeads = {
    "heads", {"num_attention_heads"}, &ModelConfig::heads, &ModelSizes::heads, 4096};
constexpr ModelSize kKvHeads = {
    "kv_heads", {"num_key_value_heads"}, &ModelConfig::kv_heads, &ModelSizes::kv_heads, 4096};
constexpr ModelSize kMlpWidth = {
    "mlp_width", {"intermediate_size"}, &ModelConfig::mlp_width, &ModelSizes::mlp_width, 1 << 20};
constexpr ModelSize kVocabSize = {
    "vocab_size", {"vocab_size"}, &ModelConfig::vocab_size, &ModelSizes::vocab_size, 1 << 24};

constexpr ModelSize kVitSizes[] = {
    {"image_size", {"image_size"}, &ModelConfig::image_size, &ModelSizes::image_size, 16384, true},
    {"patch_size", {"patch_size"}, &ModelConfig::patch_size, &ModelSizes::patch_size, 1024},
    {"channels", {"num_channels"}, &ModelConfig::channels, &ModelSizes::channels, 1024},
    kWidth,
    kLayers,
    kHeads,
    kMlpWidth,
};
/// config.json of DINOv2 has mlp_ratio.
constexpr ModelSize kDinov2Sizes[] = {kVitSizes[0], kVitSizes[1], kVitSizes[2],
                                      kWidth,       kLayers,      kHeads};
constexpr std::string_view kVitTargets[] = {"query", "value"};
constexpr std::string_view kTowerTargets[] = {"q_proj", "v_proj"};

constexpr ModelSize kBloomSizes[] = {
    {"width", {"hidden_size", "n_embed"}, &ModelConfig::width, &ModelSizes::width, 65536},
    {"layers", {"n_layer", "num_hidden_layers"}, &ModelConfig::layers, &ModelSizes::layers, 4096},
    {"heads", {"n_head", "num_attention_heads"}, &ModelConfig::heads, &ModelSizes::heads, 4096},
    kVocabSize,
};
constexpr ModelSizes bloom(std::int64_t width, std::int64_t layers, std::int64_t heads) {
  return {.width = width, .layers = layers, .heads = heads, .vocab_size = 250880};
}
constexpr PublishedModel kBlooms[] = {
    {"bloom-560m", {"bigscience/bloom-560m"}, bloom(1024, 24, 16)},
    {"bloom-1b1", {"bigscience/bloom-1b1"}, bloom(1536, 24, 16)},
    {"bloom-1b7", {"bigscience/bloom-1b7"}, bloom(2048, 24, 16)},
    {"bloom-3b", {"bigscience/bloom-3b"}, bloom(2560, 30, 32)},
    {"bloom-7b1", {"bigscience/bloom-7b1"}, bloom(4096, 30, 32)},
};
constexpr std::string_view kBloomTargets[] = {"query_key_value"};

constexpr ModelSize kGpt2Sizes[] = {
    {"width", {"n_embd", "hidden_size"}, &ModelConfig::width, &ModelSizes::width, 65536},
    kBloomSizes[1],
    kBloomSizes[2],
    {"mlp_width",
     {"n_inner"},
     &ModelConfig::mlp_width,
     &ModelSizes::mlp_width,
     1 << 20,
     false,
     true},
    kVocabSize,
};
constexpr std::string_view kGpt2Targets[] = {"c_attn"};

constexpr ModelSize kNeoxSizes[] = {kWidth, kLayers, kHeads, kMlpWidth, kVocabSize};

/// Decoders with grouped queries and a gated MLP.
constexpr ModelSize kDecoderSizes[] = {kWidth, kLayers, kHeads, kKvHeads, kMlpWidth, kVocabSize};
constexpr std::string_view kDecoderTargets[] = {"q_proj", "k_proj", "v_proj", "o_proj"};

constexpr ModelSize kWideHeadSizes[] = {
    kWidth,
    kLayers,
    kHeads,
    kKvHeads,
    {"head_dim", {"head_dim"}, &ModelConfig::head_dim, &ModelSizes::head_dim, 4096, false, true},
    kMlpWidth,
    kVocabSize,
};

/// Files of before grouped queries have as many heads of keys as of queries and do not say so.
constexpr ModelSize kLlamaSizes[] = {
    kWidth,
    kLayers,
    kHeads,
    {"kv_heads",
     {"num_key_value_heads"},
     &ModelConfig::kv_heads,
     &ModelSizes::kv_heads,
     4096,
     false,
     true},
    kWideHeadSizes[4],
    kMlpWidth,
    kVocabSize,
};

/// config.json of Phi-3 and OLMo 2 has no head_dim.
constexpr ModelSize kPhi3Sizes[] = {kWidth, kLayers, kHeads, kLlamaSizes[3], kMlpWidth, kVocabSize};
constexpr std::string_view kPhi3Targets[] = {"qkv_proj", "o_proj"};

constexpr ModelSize kExperts = {"experts",
                                {"num_experts", "num_local_experts"},
                                &ModelConfig::experts,
                                &ModelSizes::experts,
                                512};
constexpr ModelSize kExpertsPerToken = {"experts_per_token",
                                        {"num_experts_per_tok"},
                                        &ModelConfig::experts_per_token,
                                        &ModelSizes::experts_per_token,
                                        512};
constexpr ModelSize kExpertWidth = {"expert_width",
                                    {"moe_intermediate_size"},
                                    &ModelConfig::expert_width,
                                    &ModelSizes::expert_width,
                                    1 << 20};
constexpr ModelSize kQwen2MoeSizes[] = {
    kWidth,
    kLayers,
    kHeads,
    kKvHeads,
    kMlpWidth,
    kVocabSize,
    kExperts,
    kExpertsPerToken,
    kExpertWidth,
    {"shared_width",
     {"shared_expert_intermediate_size"},
     &ModelConfig::shared_width,
     &ModelSizes::shared_width,
     1 << 20},
};
constexpr ModelSize kQwen3MoeSizes[] = {
    kWidth,    kLayers,    kHeads,   kKvHeads,         kWideHeadSizes[4],
    kMlpWidth, kVocabSize, kExperts, kExpertsPerToken, kExpertWidth,
};

/// Each layer has experts, and the width of one is what a dense model's MLP has.
constexpr ModelSize kMixtralSizes[] = {
    kWidth,
    kLayers,
    kHeads,
    kLlamaSizes[3],
    kWideHeadSizes[4],
    kVocabSize,
    {"experts",
     {"num_local_experts", "num_experts"},
     &ModelConfig::experts,
     &ModelSizes::experts,
     512},
    kExpertsPerToken,
    {"expert_width",
     {"intermediate_size"},
     &ModelConfig::expert_width,
     &ModelSizes::expert_width,
     1 << 20},
};

constexpr ModelSize kImageSizes[] = {kVitSizes[0], kVitSizes[2]};
constexpr ModelSize kLstmSizes[] = {kVitSizes[0], kVitSizes[2], kWidth, kLayers};
/// A family of convolutional models for images.
constexpr ModelFamily convolutional(std::string_view name, std::string_view title,
                                    std::string_view source,
                                    std::span<const PublishedModel> published,
                                    bool drop_path = false, bool norm_args = false) {
  return {.name = name,
          .title = title,
          .source = source,
          .modality = images,
          .positions = nullptr,
          .lora_targets = {},
          .sizes = kImageSizes,
          .defaults = {},
          .published = published,
          .by_name = true,
          .drop_path = drop_path,
          .norm_args = norm_args};
}

/// One whose models are made of such models.
constexpr ModelFamily joining(std::string_view name, std::string_view title,
                              std::string_view source, std::span<const ModelSize> sizes,
                              std::span<const PublishedModel> published) {
  ModelFamily family = convolutional(name, title, source, published, /*drop_path=*/true);
  family.sizes = sizes;
  family.joins = true;
  return family;
}

constexpr ModelFamily kFamilies[] = {
    {.name = "vit",
     .title = "ViT",
     .source = "ViT, arXiv:2010.11929, table 1",
     .modality = images,
     .positions = nullptr,
     .lora_targets = kVitTargets,
     .sizes = kVitSizes,
     .defaults = vit(16, 768, 12, 12, 3072),
     .published = kVits,
     .drop_path = true},
    {.name = "deit",
     .title = "DeiT",
     .source = "DeiT, arXiv:2012.12877, table 1",
     .modality = images,
     .positions = nullptr,
     .lora_targets = kVitTargets,
     .sizes = kVitSizes,
     .defaults = vit(16, 768, 12, 12, 3072),
     .published = kDeits,
     .drop_path = true},
    {.name = "dinov2",
     .title = "DINOv2",
     .source = "DINOv2, arXiv:2304.07193, table 17",
     .modality = images,
     .positions = nullptr,
     .lora_targets = kVitTargets,
     .sizes = kDinov2Sizes,
     .defaults = vit(14, 768, 12, 12, 0),
     .published = kDinov2s,
     .drop_path = true,
     .resizes_positions = true},
    {.name = "clip",
     .title = "CLIP",
     .source = "CLIP, arXiv:2103.00020, table 20",
     .modality = images,
     .positions = nullptr,
     .lora_targets = kTowerTargets,
     .sizes = kVitSizes,
     .defaults = vit(32, 768, 12, 12, 3072),
     .published = kClips,
     .drop_path = true,
     .tower = "vision_config"},
    {.name = "siglip",
     .title = "SigLIP",
     .source = "SigLIP, arXiv:2303.15343, sec. 4",
     .modality = images,
     .positions = nullptr,
     .lora_targets = kTowerTargets,
     .sizes = kVitSizes,
     .defaults = vit(16, 768, 12, 12, 3072),
     .published = kSiglips,
     .drop_path = true,
     .tower = "vision_config"},
    {.name = "bloom",
     .title = "BLOOM",
     .source = "BLOOM, arXiv:2211.05100, table 3",
     .positions = "seq_length",
     .lora_targets = kBloomTargets,
     .sizes = kBloomSizes,
     .defaults = {},
     .published = kBlooms},
    {.name = "gpt_neox",
     .title = "GPT-NeoX",
     .source = "Pythia, arXiv:2304.01373, table 1",
     .rotary = true,
     .positions = "max_position_embeddings",
     .lora_targets = kBloomTargets,
     .sizes = kNeoxSizes,
     .defaults = {},
     .published = kPythias},
    {.name = "gpt2",
     .title = "GPT-2",
     .source = "Radford et al. 2019, table 2",
     .learnt_positions = true,
     .positions = "n_positions",
     .lora_targets = kGpt2Targets,
     .sizes = kGpt2Sizes,
     .defaults = {},
     .published = kGpt2s},
    {.name = "qwen2",
     .title = "Qwen2.5",
     .source = "Qwen2.5, arXiv:2412.15115, table 1",
     .rotary = true,
     .positions = "max_position_embeddings",
     .lora_targets = kDecoderTargets,
     .sizes = kDecoderSizes,
     .defaults = {},
     .published = kQwen2s},
    {.name = "qwen3",
     .title = "Qwen3",
     .source = "Qwen3, arXiv:2505.09388, table 1",
     .rotary = true,
     .positions = "max_position_embeddings",
     .lora_targets = kDecoderTargets,
     .sizes = kWideHeadSizes,
     .defaults = {.head_dim = 128},
     .published = kQwen3s},
    {.name = "llama",
     .title = "Llama",
     .source = "Llama 3, arXiv:2407.21783, table 3",
     .rotary = true,
     .positions = "max_position_embeddings",
     .lora_targets = kDecoderTargets,
     .sizes = kLlamaSizes,
     .defaults = {},
     .published = kLlamas},
    {.name = "mistral",
     .title = "Mistral",
     .source = "Mistral 7B, arXiv:2310.06825, table 1",
     .rotary = true,
     .positions = "max_position_embeddings",
     .lora_targets = kDecoderTargets,
     .sizes = kLlamaSizes,
     .defaults = {},
     .published = kMistrals},
    {.name = "phi3",
     .title = "Phi-3",
     .source = "Phi-3, arXiv:2404.14219, sec. 2",
     .rotary = true,
     .positions = "max_position_embeddings",
     .lora_targets = kPhi3Targets,
     .sizes = kPhi3Sizes,
     .defaults = {},
     .published = kPhi3s},
    {.name = "qwen2_moe",
     .title = "Qwen2 MoE",
     .source = "Qwen2, arXiv:2407.10671, table 1",
     .rotary = true,
     .positions = "max_position_embeddings",
     .lora_targets = kDecoderTargets,
     .sizes = kQwen2MoeSizes,
     .defaults = {},
     .published = kQwen2Moes},
    {.name = "qwen3_moe",
     .title = "Qwen3 MoE",
     .source = "Qwen3, arXiv:2505.09388, table 2",
     .rotary = true,
     .positions = "max_position_embeddings",
     .lora_targets = kDecoderTargets,
     .sizes = kQwen3MoeSizes,
     .defaults = {},
     .published = kQwen3Moes},
    {.name = "olmo2",
     .title = "OLMo 2",
     .source = "OLMo 2, arXiv:2501.00656, table 3",
     .rotary = true,
     .positions = "max_position_embeddings",
     .lora_targets = kDecoderTargets,
     .sizes = kPhi3Sizes,
     .defaults = {},
     .published = kOlmo2s},
    {.name = "gemma2",
     .title = "Gemma 2",
     .source = "Gemma 2, arXiv:2408.00118, table 1",
     .rotary = true,
     .positions = "max_position_embeddings",
     .lora_targets = kDecoderTargets,
     .sizes = kWideHeadSizes,
     .defaults = {.head_dim = 256},
     .published = kGemma2s},
    {.name = "gemma3_text",
     .title = "Gemma 3",
     .source = "Gemma 3, arXiv:2503.19786, table 1",
     .rotary = true,
     .positions = "max_position_embeddings",
     .lora_targets = kDecoderTargets,
     .sizes = kWideHeadSizes,
     .defaults = {.head_dim = 256},
     .published = kGemma3s},
    {.name = "mixtral",
     .title = "Mixtral",
     .source = "Mixtral, arXiv:2401.04088, table 1",
     .rotary = true,
     .positions = "max_position_embeddings",
     .lora_targets = kDecoderTargets,
     .sizes = kMixtralSizes,
     .defaults = {},
     .published = kMixtrals},
    convolutional("basic_cnn", "basic CNN", {}, kBasicCnns),
    convolutional("resnet", "ResNet", "ResNet, arXiv:1512.03385, table 1", kResNets),
    convolutional("vgg", "VGG", "VGG, arXiv:1409.1556, table 1", kVggs),
    convolutional("mobilenet_v2", "MobileNetV2", "MobileNetV2, arXiv:1801.04381, table 2",
                  kMobileNetV2s, /*drop_path=*/false, /*norm_args=*/true),
    convolutional("mobilenet_v3_large", "MobileNetV3-Large",
                  "MobileNetV3, arXiv:1905.02244, table 1", kMobileNetV3Larges,
                  /*drop_path=*/false, /*norm_args=*/true),
    convolutional("mobilenet_v3_small", "MobileNetV3-Small",
                  "MobileNetV3, arXiv:1905.02244, table 2", kMobileNetV3Smalls,
                  /*drop_path=*/false, /*norm_args=*/true),
    convolutional("efficientnet", "EfficientNet", "EfficientNet, arXiv:1905.11946, table 1",
                  kEfficientNets, /*drop_path=*/true, /*norm_args=*/true),
    convolutional("convnext", "ConvNeXt", "ConvNeXt, arXiv:2201.03545, sec. 3", kConvNexts,
                  /*drop_path=*/true),
    joining("ensemble", "an ensemble", {}, kImageSizes, kEnsembles),
    joining("cnn_lstm", "a CNN-LSTM", "arXiv:1411.4389, sec. 3", kLstmSizes, kCnnLstms),
};

std::string sizes_text(const ModelSizes& sizes) {
  std::string text =
      fmt::format("{} layers of width {}, {} heads", sizes.layers, sizes.width, sizes.heads);
  if (sizes.kv_heads != 0) text += fmt::format(", {} key-value heads", sizes.kv_heads);
  return text;
}

/// Choices and the texts that they refer to.
struct ModelNames {
  std::vector<Choice> choices;
  std::deque<std::string> texts;

  void add(std::string_view name, std::string text) {
    texts.push_back(std::move(text));
    choices.push_back({.name = name, .text = texts.back()});
  }
};

ModelNames list_names() {
  ModelNames names;
  for (const ModelFamily& family : kFamilies) {
    // GPT-2's name is also that of its first model.
    if (family.by_name || published_model(family.name) != nullptr) continue;
    names.add(family.name,
              fmt::format("{} of the sizes below or of model.weights", family.title));
  }
  for (const ModelFamily& family : kFamilies) {
    for (const PublishedModel& model : family.published)
      names.add(model.name, model.text.empty() ? sizes_text(model.sizes) : std::string(model.text));
    for (std::size_t i = 0; i < std::size(PublishedModel{}.aliases); ++i) {
      for (const PublishedModel& model : family.published) {
        if (!model.aliases[i].empty())
          names.add(model.aliases[i], fmt::format("another name of {}", model.name));
      }
    }
  }
  return names;
}

bool is_called(const PublishedModel& model, std::string_view name) {
  return !name.empty() &&
         (model.name == name || model.aliases[0] == name || model.aliases[1] == name);
}

}  // namespace

std::span<const ModelFamily> model_families() { return kFamilies; }

const ModelFamily* family_of_type(std::string_view model_type) {
  for (const ModelFamily& family : kFamilies) {
    if (family.name == model_type) return &family;
  }
  return nullptr;
}

const PublishedModel* published_architecture(std::string_view architecture) {
  for (const ModelFamily& family : kFamilies) {
    if (!family.by_name) continue;
    for (const PublishedModel& model : family.published) {
      const auto ends_so = [&](std::string_view alias) {
        return !alias.empty() && alias.substr(alias.find('/') + 1) == architecture;
      };
      if (model.name == architecture || std::ranges::any_of(model.aliases, ends_so)) return &model;
    }
  }
  return nullptr;
}

const PublishedModel* timm_variant(std::string_view architecture, const NormConstants& norm) {
  for (const ModelFamily& family : kFamilies) {
    for (const PublishedModel& model : family.published) {
      if (model.timm_variant == architecture && !architecture.empty() && model.norm == norm)
        return &model;
    }
  }
  return nullptr;
}

std::string_view architecture_of(const PublishedModel& model) {
  if (!model.timm_variant.empty()) return model.timm_variant;
  for (const std::string_view alias : model.aliases) {
    if (alias.starts_with("timm/")) return alias.substr(alias.find('/') + 1);
  }
  return model.name;
}

const ModelFamily* family_of(std::string_view name) {
  for (const ModelFamily& family : kFamilies) {
    for (const PublishedModel& model : family.published) {
      if (is_called(model, name)) return &family;
    }
  }
  const ModelFamily* family = family_of_type(name);
  return family == nullptr || family->by_name ? nullptr : family;
}

const PublishedModel* published_model(std::string_view name) {
  for (const ModelFamily& family : kFamilies) {
    for (const PublishedModel& model : family.published) {
      if (is_called(model, name)) return &model;
    }
  }
  return nullptr;
}

std::span<const Choice> model_names() {
  static const ModelNames names = list_names();
  return names.choices;
}

std::string family_names() {
  std::vector<std::string_view> names;
  for (const ModelFamily& family : kFamilies) {
    if (!family.by_name) names.push_back(family.name);
  }
  return one_of(names);
}

}  // namespace dstrain
