#include "engine/models/family.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/models/basic_cnn/basic_cnn.h"
#include "engine/models/bloom/model.h"
#include "engine/models/clip/clip.h"
#include "engine/models/cnn_lstm/cnn_lstm.h"
#include "engine/models/convnext/convnext.h"
#include "engine/models/decoder/model.h"
#include "engine/models/deit/deit.h"
#include "engine/models/dinov2/dinov2.h"
#include "engine/models/efficientnet/efficientnet.h"
#include "engine/models/ensemble/ensemble.h"
#include "engine/models/gemma/gemma.h"
#include "engine/models/gpt2/model.h"
#include "engine/models/gpt_neox/model.h"
#include "engine/models/llama/llama.h"
#include "engine/models/mistral/mistral.h"
#include "engine/models/mixtral/mixtral.h"
#include "engine/models/mobilenet/mobilenet_v2.h"
#include "engine/models/mobilenet/mobilenet_v3.h"
#include "engine/models/model.h"
#include "engine/models/olmo2/olmo2.h"
#include "engine/models/phi3/phi3.h"
#include "engine/models/qwen2/qwen2.h"
#include "engine/models/qwen3/qwen3.h"
#include "engine/models/qwen_moe/qwen_moe.h"
#include "engine/models/resnet/resnet.h"
#include "engine/models/siglip/siglip.h"
#include "engine/models/upcycled_weights.h"
#include "engine/models/vgg/vgg.h"
#include "engine/models/vit/model.h"
#include "engine/models/vit/names.h"
#include "engine/recipe/config_file.h"
#include "engine/recipe/text.h"

namespace dstrain {
namespace {

/// For names that begin with `prefix`: also without it, as files of a model without head have them.
std::vector<std::string> with_and_without(std::string_view prefix, const std::string& name) {
  if (!name.starts_with(prefix)) return {name};
  return {name, name.substr(prefix.size())};
}

std::vector<std::string> transformer_names(const std::string& name) {
  return with_and_without("transformer.", name);
}

std::vector<std::string> decoder_names(const std::string& name) {
  return with_and_without("model.", name);
}

Model qwen2_moe_model(const ModelConfig& recipe, const ModelFamily& family,
                      const ModelInputs& inputs) {
  // A plan needs no folder.
  if (!inputs.experts.upcycle || recipe.weights.empty())
    return make_decoder<kQwen2Moe>(recipe, family, inputs);
  return decoder_model(upcycled_config(recipe, family, kQwen2Moe), family, kQwen2Moe, inputs);
}

std::string same_name(const std::string& name) { return name; }

template <FileTensor (*timm_tensor)(const FileTensor&)>
std::vector<std::string> ours_or_timms(const std::string& name) {
  const std::string theirs = timm_tensor({name, {}}).name;
  return theirs == name ? std::vector{name} : std::vector{name, theirs};
}
std::vector<std::string> one_name(const std::string& name) { return {name}; }

constexpr std::string_view kNeoxBuffers[] = {".attention.bias", ".attention.masked_bias",
                                             ".attention.rotary_emb.inv_freq"};
constexpr std::string_view kGpt2Buffers[] = {".attn.bias", ".attn.masked_bias"};
constexpr std::string_view kGpt2Transposed[] = {".c_attn.weight", ".c_proj.weight", ".c_fc.weight"};
constexpr std::string_view kLlamaBuffers[] = {".self_attn.rotary_emb.inv_freq"};

constexpr std::string_view kTowerBuffers[] = {".embeddings.position_ids"};

constexpr Family kModels[] = {
    {.name = "vit",
     .make = make_vit<kVit>,
     .file_names = vit_file_names,
     .memory_name = vit_memory_name,
     .embedding = {},
     .classifier = "classifier",
     .with_classifier = "ViTForImageClassification"},
    {.name = "deit",
     .make = make_vit<kDeit>,
     .file_names = deit_file_names,
     .memory_name = deit_memory_name,
     .embedding = {},
     .classifier = "classifier",
     .with_classifier = "DeiTForImageClassification"},
    {.name = "dinov2",
     .make = make_vit<kDinov2>,
     .file_names = dinov2_file_names,
     .memory_name = dinov2_memory_name,
     .embedding = {},
     .classifier = "classifier",
     .with_classifier = "Dinov2ForImageClassification"},
    {.name = "clip",
     .make = make_vit<kClip>,
     .file_names = one_name,
     .memory_name = same_name,
     .embedding = {},
     .classifier = "classifier",
     .with_classifier = "CLIPForImageClassification",
     .buffers = kTowerBuffers},
    {.name = "siglip",
     .make = make_vit<kSiglip>,
     .file_names = one_name,
     .memory_name = same_name,
     .embedding = {},
     .classifier = "classifier",
     .with_classifier = "SiglipForImageClassification",
     .buffers = kTowerBuffers},
    {.name = "bloom",
     .make = bloom_model,
     .file_names = transformer_names,
     .memory_name = same_name,
     .embedding = "transformer.word_embeddings.weight",
     .classifier = {},
     .with_classifier = {}},
    {.name = "gpt_neox",
     .make = gpt_neox_model,
     .file_names = gpt_neox_file_names,
     .memory_name = same_name,
     .embedding = "gpt_neox.embed_in.weight",
     .classifier = {},
     .with_classifier = {},
     .buffers = kNeoxBuffers},
    {.name = "gpt2",
     .make = gpt2_model,
     .file_names = transformer_names,
     .memory_name = same_name,
     .embedding = "transformer.wte.weight",
     .classifier = {},
     .with_classifier = {},
     .buffers = kGpt2Buffers,
     .transposed = kGpt2Transposed},
    {.name = "qwen2",
     .make = make_decoder<kQwen2>,
     .file_names = decoder_names,
     .memory_name = same_name,
     .embedding = "model.embed_tokens.weight",
     .classifier = {},
     .with_classifier = {}},
    {.name = "qwen3",
     .make = make_decoder<kQwen3>,
     .file_names = decoder_names,
     .memory_name = same_name,
     .embedding = "model.embed_tokens.weight",
     .classifier = {},
     .with_classifier = {}},
    {.name = "qwen2_moe",
     .make = qwen2_moe_model,
     .file_names = decoder_names,
     .memory_name = same_name,
     .embedding = "model.embed_tokens.weight",
     .classifier = {},
     .with_classifier = {}},
    {.name = "qwen3_moe",
     .make = make_decoder<kQwen3Moe>,
     .file_names = decoder_names,
     .memory_name = same_name,
     .embedding = "model.embed_tokens.weight",
     .classifier = {},
     .with_classifier = {}},
    {.name = "llama",
     .make = make_decoder<kLlama>,
     .file_names = decoder_names,
     .memory_name = same_name,
     .embedding = "model.embed_tokens.weight",
     .classifier = {},
     .with_classifier = {},
     .buffers = kLlamaBuffers},
    {.name = "mistral",
     .make = make_decoder<kMistral>,
     .file_names = decoder_names,
     .memory_name = same_name,
     .embedding = "model.embed_tokens.weight",
     .classifier = {},
     .with_classifier = {}},
    {.name = "mixtral",
     .make = make_decoder<kMixtral>,
     .file_names = decoder_names,
     .memory_name = same_name,
     .embedding = "model.embed_tokens.weight",
     .classifier = {},
     .with_classifier = {}},
    {.name = "olmo2",
     .make = make_decoder<kOlmo2>,
     .file_names = decoder_names,
     .memory_name = same_name,
     .embedding = "model.embed_tokens.weight",
     .classifier = {},
     .with_classifier = {}},
    {.name = "gemma2",
     .make = make_decoder<kGemma2>,
     .file_names = decoder_names,
     .memory_name = same_name,
     .embedding = "model.embed_tokens.weight",
     .classifier = {},
     .with_classifier = {}},
    {.name = "gemma3_text",
     .make = make_decoder<kGemma3>,
     .file_names = decoder_names,
     .memory_name = same_name,
     .embedding = "model.embed_tokens.weight",
     .classifier = {},
     .with_classifier = {}},
    {.name = "phi3",
     .make = make_decoder<kPhi3>,
     .file_names = decoder_names,
     .memory_name = same_name,
     .embedding = "model.embed_tokens.weight",
     .classifier = {},
     .with_classifier = {}},
    {.name = "basic_cnn",
     .make = basic_cnn_model,
     .file_names = one_name,
     .memory_name = same_name,
     .embedding = {},
     .classifier = "classifier",
     .with_classifier = {}},
    {.name = "resnet",
     .make = resnet_model,
     .file_names = one_name,
     .memory_name = same_name,
     .embedding = {},
     .classifier = "fc",
     .with_classifier = {}},
    {.name = "vgg",
     .make = vgg_model,
     .file_names = ours_or_timms<vgg_timm_tensor>,
     .memory_name = same_name,
     .embedding = {},
     .classifier = "classifier.6",
     .with_classifier = {},
     .timm_tensor = vgg_timm_tensor},
    {.name = "mobilenet_v2",
     .make = mobilenet_v2_model,
     .file_names = ours_or_timms<mobilenet_v2_timm_tensor>,
     .memory_name = same_name,
     .embedding = {},
     .classifier = "classifier.1",
     .with_classifier = {},
     .timm_tensor = mobilenet_v2_timm_tensor},
    {.name = "mobilenet_v3_large",
     .make = mobilenet_v3_model,
     .file_names = ours_or_timms<mobilenet_v3_large_timm_tensor>,
     .memory_name = same_name,
     .embedding = {},
     .classifier = "classifier.3",
     .with_classifier = {},
     .timm_tensor = mobilenet_v3_large_timm_tensor},
    {.name = "mobilenet_v3_small",
     .make = mobilenet_v3_model,
     .file_names = ours_or_timms<mobilenet_v3_small_timm_tensor>,
     .memory_name = same_name,
     .embedding = {},
     .classifier = "classifier.3",
     .with_classifier = {},
     .timm_tensor = mobilenet_v3_small_timm_tensor},
    {.name = "efficientnet",
     .make = efficientnet_model,
     .file_names = ours_or_timms<efficientnet_timm_tensor>,
     .memory_name = same_name,
     .embedding = {},
     .classifier = "classifier.1",
     .with_classifier = {},
     .timm_tensor = efficientnet_timm_tensor},
    {.name = "convnext",
     .make = convnext_model,
     .file_names = ours_or_timms<convnext_timm_tensor>,
     .memory_name = same_name,
     .embedding = {},
     .classifier = "classifier.2",
     .with_classifier = {},
     .timm_tensor = convnext_timm_tensor},
    {.name = "cnn_lstm",
     .make = cnn_lstm_model,
     .file_names = one_name,
     .memory_name = same_name,
     .embedding = {},
     .classifier = "classifier",
     .with_classifier = {}},
    {.name = "ensemble",
     .make = ensemble_model,
     .file_names = one_name,
     .memory_name = same_name,
     .embedding = {},
     .classifier = {},
     .with_classifier = {}},
};

const Family* family_called(const ModelFamily* recipe) {
  for (const Family& family : kModels) {
    if (recipe != nullptr && family.name == recipe->name) return &family;
  }
  return nullptr;
}

}  // namespace

std::optional<TransposedMatrix> Family::turned_in_file(
    std::string_view tensor, const std::vector<std::int64_t>& shape) const {
  const bool turned =
      std::ranges::any_of(transposed, [&](std::string_view end) { return tensor.ends_with(end); });
  if (!turned) return std::nullopt;
  return TransposedMatrix{.rows = shape.at(0), .columns = shape.at(1)};
}

std::span<const Family> families() { return kModels; }

const Family& find_family(const ModelConfig& config) {
  if (const Family* named = family_called(family_of(config.name))) return *named;
  if (!config.name.empty() || config.weights.empty()) {
    std::vector<std::string_view> known;
    for (const Choice& choice : model_names()) known.push_back(choice.name);
    throw Error(ErrorKind::usage,
                fmt::format("model.name: '{}' is no model that dstrain knows", config.name),
                "it must be " + one_of(known));
  }
  const std::string architecture = architecture_named_in(config.weights);
  if (const PublishedModel* model = published_architecture(architecture); model != nullptr)
    return *family_called(family_of(model->name));
  const std::string type = model_type_of(config.weights);
  if (const Family* found = family_called(family_of_type(type))) return *found;
  throw Error(ErrorKind::data,
              fmt::format("{}/config.json: model_type is '{}'", config.weights, type),
              "it must be " + family_names());
}

}  // namespace dstrain
