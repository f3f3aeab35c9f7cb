#pragma once

#include <string>

#include "engine/models/model.h"

namespace dstrain::test {

/// A ViT that runs in milliseconds: 5 tokens of width 16, two layers.
inline ModelConfig small_config() {
  ModelConfig config;
  config.name = "vit-tiny";
  config.image_size = 8;
  config.patch_size = 4;
  config.width = 16;
  config.layers = 2;
  config.heads = 2;
  config.mlp_width = 24;
  return config;
}

/// A BLOOM of two layers, with a number of heads that is no power of two.
inline ModelConfig small_bloom_config() {
  ModelConfig config;
  config.name = "bloom-560m";
  config.width = 24;
  config.layers = 2;
  config.heads = 6;
  config.vocab_size = 50;
  return config;
}

/// A Qwen2 of two layers with grouped queries and a tied head.
inline ModelConfig small_qwen2_config() {
  ModelConfig config;
  config.name = "qwen2.5-0.5b";
  config.width = 16;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.mlp_width = 24;
  config.vocab_size = 50;
  return config;
}

/// A Qwen3 of two layers, whose heads are wider than width / heads.
inline ModelConfig small_qwen3_config() {
  ModelConfig config = small_qwen2_config();
  config.name = "qwen3-0.6b";
  config.head_dim = 6;
  return config;
}

/// A Qwen2 MoE of two layers with six experts and a shared one.
inline ModelConfig small_qwen2_moe_config() {
  ModelConfig config = small_qwen2_config();
  config.name = "qwen2.5-3b-moe";
  config.experts = 6;
  config.experts_per_token = 2;
  config.expert_width = 12;
  config.shared_width = 20;
  return config;
}

/// A Qwen3 MoE of two layers, without a shared expert.
inline ModelConfig small_qwen3_moe_config() {
  ModelConfig config = small_qwen3_config();
  config.name = "qwen3-30b-a3b";
  config.experts = 5;
  config.experts_per_token = 3;
  config.expert_width = 12;
  return config;
}

/// A Llama 3.2 of two layers, with slowed rotary positions.
inline ModelConfig small_llama_config() {
  ModelConfig config = small_qwen2_config();
  config.name = "llama-3.2-1b";
  config.head_dim = 4;
  return config;
}

/// A Pythia of two layers, whose branches are parallel.
inline ModelConfig small_neox_config() {
  ModelConfig config = small_bloom_config();
  config.name = "pythia-160m";
  config.width = 48;
  config.mlp_width = 48;
  return config;
}

/// A GPT-2 of two layers.
inline ModelConfig small_gpt2_config() {
  ModelConfig config = small_bloom_config();
  config.name = "gpt2";
  config.mlp_width = 40;
  return config;
}

/// A Mistral of two layers.
inline ModelConfig small_mistral_config() {
  ModelConfig config = small_llama_config();
  config.name = "mistral-7b-v0.1";
  return config;
}

/// A Mixtral of two layers with five experts.
inline ModelConfig small_mixtral_config() {
  ModelConfig config = small_llama_config();
  config.name = "mixtral-8x7b";
  config.mlp_width = 0;
  config.experts = 5;
  config.experts_per_token = 2;
  config.expert_width = 12;
  return config;
}

/// An OLMo 2 of two layers, which norms behind its branches.
inline ModelConfig small_olmo2_config() {
  ModelConfig config = small_qwen2_config();
  config.name = "olmo2-7b";
  return config;
}

/// A Gemma 2 of two layers, with soft caps.
inline ModelConfig small_gemma2_config() {
  ModelConfig config = small_qwen3_config();
  config.name = "gemma-2-2b";
  return config;
}

/// A Gemma 3 of two layers.
inline ModelConfig small_gemma3_config() {
  ModelConfig config = small_qwen3_config();
  config.name = "gemma-3-270m";
  return config;
}

/// A Phi-3 of two layers, with joined tensors and heads of which a part turns.
inline ModelConfig small_phi3_config() {
  ModelConfig config = small_qwen2_config();
  config.name = "phi-4-mini";
  config.width = 32;
  return config;
}

/// A Vision Transformer of the named family, like small_config.
inline ModelConfig small_tower_config(const std::string& name) {
  ModelConfig config = small_config();
  config.name = name;
  if (name.starts_with("dinov2")) config.mlp_width = 0;
  return config;
}

inline Model small_model(int classes) { return make_model(small_config(), {.classes = classes}); }

}  // namespace dstrain::test
