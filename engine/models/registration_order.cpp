#include "engine/models/registration_order.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <string_view>
#include <tuple>

#include "engine/models/family.h"

namespace dstrain {
namespace {

/// Modules in their order; "." marks the layers, whose own modules stand in `layer`.
struct Order {
  std::string_view prefix;  ///< of a layer, before its number
  std::span<const std::string_view> before, layer, after;
};

constexpr std::array<std::string_view, 1> kDecoderBefore = {"model.embed_tokens"};
/// What the layers of all decoders of this kind register, in an order that each of them keeps.
constexpr std::array<std::string_view, 15> kDecoderLayer = {"self_attn.q_proj",
                                                            "self_attn.k_proj",
                                                            "self_attn.v_proj",
                                                            "self_attn.o_proj",
                                                            "self_attn.qkv_proj",
                                                            "self_attn.q_norm",
                                                            "self_attn.k_norm",
                                                            "mlp.gate_proj",
                                                            "mlp.up_proj",
                                                            "mlp.gate_up_proj",
                                                            "mlp.down_proj",
                                                            "input_layernorm",
                                                            "post_attention_layernorm",
                                                            "pre_feedforward_layernorm",
                                                            "post_feedforward_layernorm"};
constexpr std::array<std::string_view, 2> kDecoderAfter = {"model.norm", "lm_head"};
constexpr std::array<std::string_view, 2> kBloomBefore = {"transformer.word_embeddings",
                                                          "transformer.word_embeddings_layernorm"};
constexpr std::array<std::string_view, 6> kBloomLayer = {
    "input_layernorm",      "self_attention.query_key_value",
    "self_attention.dense", "post_attention_layernorm",
    "mlp.dense_h_to_4h",    "mlp.dense_4h_to_h"};
constexpr std::array<std::string_view, 2> kBloomAfter = {"transformer.ln_f", "lm_head"};

constexpr std::array<std::string_view, 2> kGpt2Before = {"transformer.wte", "transformer.wpe"};
constexpr std::array<std::string_view, 6> kGpt2Layer = {"ln_1", "attn.c_attn", "attn.c_proj",
                                                        "ln_2", "mlp.c_fc",    "mlp.c_proj"};

constexpr std::array<std::string_view, 1> kNeoxBefore = {"gpt_neox.embed_in"};
constexpr std::array<std::string_view, 6> kNeoxLayer = {
    "input_layernorm", "post_attention_layernorm", "attention.query_key_value",
    "attention.dense", "mlp.dense_h_to_4h",        "mlp.dense_4h_to_h"};
constexpr std::array<std::string_view, 2> kNeoxAfter = {"gpt_neox.final_layer_norm", "lm_head"};

constexpr Order kDecoder = {"model.layers.", kDecoderBefore, kDecoderLayer, kDecoderAfter};
constexpr Order kNeox = {"gpt_neox.layers.", kNeoxBefore, kNeoxLayer, kNeoxAfter};
constexpr Order kGpt2 = {"transformer.h.", kGpt2Before, kGpt2Layer, kBloomAfter};
constexpr Order kBloom = {"transformer.h.", kBloomBefore, kBloomLayer, kBloomAfter};

/// Place of a tensor: part of the model, layer, module, weight before bias; -1 as module: unknown.
using Place = std::tuple<int, int, int, int>;

int index_in(std::span<const std::string_view> modules, std::string_view module) {
  const auto found = std::ranges::find(modules, module);
  return found == modules.end() ? -1 : static_cast<int>(found - modules.begin());
}

Place place_of(const Order& order, std::string_view name) {
  const std::size_t dot = name.rfind('.');
  std::string_view module = name.substr(0, dot);
  const int last = name.substr(dot + 1) == "bias" ? 1 : 0;
  if (!module.starts_with(order.prefix)) {
    const int before = index_in(order.before, module);
    if (before >= 0) return {0, 0, before, last};
    return {2, 0, index_in(order.after, module), last};
  }
  module.remove_prefix(order.prefix.size());
  int layer = 0;
  const auto [end, error] = std::from_chars(module.data(), module.data() + module.size(), layer);
  const auto digits = static_cast<std::size_t>(end - module.data());
  if (error != std::errc() || digits >= module.size()) return {1, 0, -1, last};
  return {1, layer, index_in(order.layer, module.substr(digits + 1)), last};
}

/// A model with a module that its list does not have has no order.
const Order& order_of(std::string_view family) {
  if (family == "bloom") return kBloom;
  if (family == "gpt2") return kGpt2;
  if (family == "gpt_neox") return kNeox;
  return kDecoder;
}

}  // namespace

std::vector<std::string> registration_order(const Model& model) {
  const Order& order = order_of(model.family->name);
  std::vector<std::pair<Place, std::string>> places;
  for (const Parameter* parameter : all_parameters(model)) {
    if (!parameter->trainable) continue;
    for (const Piece& part : parameter->parts) {
      const Place place = place_of(order, part.name);
      if (std::get<2>(place) < 0) return {};
      places.emplace_back(place, part.name);
    }
  }
  std::ranges::sort(places);
  std::vector<std::string> names;
  for (auto& [place, name] : places) names.push_back(std::move(name));
  return names;
}

}  // namespace dstrain
