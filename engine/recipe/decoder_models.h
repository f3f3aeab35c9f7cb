#pragma once

#include "engine/recipe/families.h"

/// The published decoders of text; rows of families.cpp.
namespace dstrain {

constexpr ModelSizes pythia(std::int64_t width, std::int64_t layers, std::int64_t heads,
                            std::int64_t vocab_size = 50304) {
  return {.width = width,
          .layers = layers,
          .heads = heads,
          .mlp_width = 4 * width,
          .vocab_size = vocab_size};
}
inline constexpr PublishedModel kPythias[] = {
    {"pythia-14m", {"EleutherAI/pythia-14m", "EleutherAI/pythia-14m-deduped"}, pythia(128, 6, 4)},
    {"pythia-70m", {"EleutherAI/pythia-70m", "EleutherAI/pythia-70m-deduped"}, pythia(512, 6, 8)},
    {"pythia-160m",
     {"EleutherAI/pythia-160m", "EleutherAI/pythia-160m-deduped"},
     pythia(768, 12, 12)},
    {"pythia-410m",
     {"EleutherAI/pythia-410m", "EleutherAI/pythia-410m-deduped"},
     pythia(1024, 24, 16)},
    {"pythia-1b", {"EleutherAI/pythia-1b", "EleutherAI/pythia-1b-deduped"}, pythia(2048, 16, 8)},
    {"pythia-1.4b",
     {"EleutherAI/pythia-1.4b", "EleutherAI/pythia-1.4b-deduped"},
     pythia(2048, 24, 16)},
    {"pythia-2.8b",
     {"EleutherAI/pythia-2.8b", "EleutherAI/pythia-2.8b-deduped"},
     pythia(2560, 32, 32)},
    {"pythia-6.9b",
     {"EleutherAI/pythia-6.9b", "EleutherAI/pythia-6.9b-deduped"},
     pythia(4096, 32, 32, 50432)},
    {"pythia-12b",
     {"EleutherAI/pythia-12b", "EleutherAI/pythia-12b-deduped"},
     pythia(5120, 36, 40, 50688)},
};

constexpr ModelSizes gpt2(std::int64_t width, std::int64_t layers, std::int64_t heads) {
  return {.width = width,
          .layers = layers,
          .heads = heads,
          .mlp_width = 4 * width,
          .vocab_size = 50257};
}
inline constexpr PublishedModel kGpt2s[] = {
    {"gpt2", {"openai-community/gpt2"}, gpt2(768, 12, 12)},
    {"gpt2-medium", {"openai-community/gpt2-medium"}, gpt2(1024, 24, 16)},
    {"gpt2-large", {"openai-community/gpt2-large"}, gpt2(1280, 36, 20)},
    {"gpt2-xl", {"openai-community/gpt2-xl"}, gpt2(1600, 48, 25)},
    {"distilgpt2", {"distilbert/distilgpt2"}, gpt2(768, 6, 12)},
};

inline constexpr PublishedModel kQwen2s[] = {
    {"qwen2.5-0.5b",
     {"Qwen/Qwen2.5-0.5B"},
     {.width = 896,
      .layers = 24,
      .heads = 14,
      .kv_heads = 2,
      .mlp_width = 4864,
      .vocab_size = 151936}},
    {"qwen2.5-1.5b",
     {"Qwen/Qwen2.5-1.5B"},
     {.width = 1536,
      .layers = 28,
      .heads = 12,
      .kv_heads = 2,
      .mlp_width = 8960,
      .vocab_size = 151936}},
    {"qwen2.5-3b",
     {"Qwen/Qwen2.5-3B"},
     {.width = 2048,
      .layers = 36,
      .heads = 16,
      .kv_heads = 2,
      .mlp_width = 11008,
      .vocab_size = 151936}},
    {"qwen2.5-7b",
     {"Qwen/Qwen2.5-7B"},
     {.width = 3584,
      .layers = 28,
      .heads = 28,
      .kv_heads = 4,
      .mlp_width = 18944,
      .vocab_size = 152064}},
    {"qwen2.5-14b",
     {"Qwen/Qwen2.5-14B"},
     {.width = 5120,
      .layers = 48,
      .heads = 40,
      .kv_heads = 8,
      .mlp_width = 13824,
      .vocab_size = 152064}},
};

constexpr ModelSizes qwen3(std::int64_t width, std::int64_t layers, std::int64_t heads,
                           std::int64_t mlp_width) {
  return {.width = width,
          .layers = layers,
          .heads = heads,
          .kv_heads = 8,
          .head_dim = 128,
          .mlp_width = mlp_width,
          .vocab_size = 151936};
}
inline constexpr PublishedModel kQwen3s[] = {
    {"qwen3-0.6b", {"Qwen/Qwen3-0.6B"}, qwen3(1024, 28, 16, 3072)},
    {"qwen3-1.7b", {"Qwen/Qwen3-1.7B"}, qwen3(2048, 28, 16, 6144)},
    {"qwen3-4b", {"Qwen/Qwen3-4B"}, qwen3(2560, 36, 32, 9728)},
    {"qwen3-8b", {"Qwen/Qwen3-8B"}, qwen3(4096, 36, 32, 12288)},
};

constexpr ModelSizes llama(std::int64_t width, std::int64_t layers, std::int64_t heads,
                           std::int64_t head_dim, std::int64_t mlp_width) {
  return {.width = width,
          .layers = layers,
          .heads = heads,
          .kv_heads = 8,
          .head_dim = head_dim,
          .mlp_width = mlp_width,
          .vocab_size = 128256};
}
/// Llamas of before and beside Llama 3, and what is like them; `head_dim` 0: width / heads.
constexpr ModelSizes decoder(std::int64_t width, std::int64_t layers, std::int64_t heads,
                             std::int64_t kv_heads, std::int64_t head_dim, std::int64_t mlp_width,
                             std::int64_t vocab_size) {
  return {.width = width,
          .layers = layers,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .mlp_width = mlp_width,
          .vocab_size = vocab_size};
}
inline constexpr PublishedModel kLlamas[] = {
    {"llama-3.2-1b", {"meta-llama/Llama-3.2-1B"}, llama(2048, 16, 32, 64, 8192)},
    {"llama-3.2-3b", {"meta-llama/Llama-3.2-3B"}, llama(3072, 28, 24, 128, 8192)},
    {"llama-3.1-8b", {"meta-llama/Llama-3.1-8B"}, llama(4096, 32, 32, 128, 14336)},
    {"llama-3-8b", {"meta-llama/Meta-Llama-3-8B"}, llama(4096, 32, 32, 128, 14336)},
    {"llama-2-7b", {"meta-llama/Llama-2-7b-hf"}, decoder(4096, 32, 32, 32, 128, 11008, 32000)},
    {"tinyllama-1.1b", {"TinyLlama/TinyLlama_v1.1"}, decoder(2048, 22, 32, 4, 64, 5632, 32000)},
    {"smollm2-135m", {"HuggingFaceTB/SmolLM2-135M"}, decoder(576, 30, 9, 3, 64, 1536, 49152)},
    {"smollm2-360m", {"HuggingFaceTB/SmolLM2-360M"}, decoder(960, 32, 15, 5, 64, 2560, 49152)},
    {"smollm2-1.7b", {"HuggingFaceTB/SmolLM2-1.7B"}, decoder(2048, 24, 32, 32, 64, 8192, 49152)},
};

inline constexpr PublishedModel kMistrals[] = {
    {"mistral-7b-v0.1", {"mistralai/Mistral-7B-v0.1"}, decoder(4096, 32, 32, 8, 128, 14336, 32000)},
    {"mistral-7b-v0.3", {"mistralai/Mistral-7B-v0.3"}, decoder(4096, 32, 32, 8, 128, 14336, 32768)},
    {"mistral-nemo-12b",
     {"mistralai/Mistral-Nemo-Base-2407"},
     decoder(5120, 40, 32, 8, 128, 14336, 131072)},
    {"mistral-small-24b",
     {"mistralai/Mistral-Small-24B-Base-2501"},
     decoder(5120, 40, 32, 8, 128, 32768, 131072)},
};

inline constexpr PublishedModel kPhi3s[] = {
    {"phi-3-mini-4k",
     {"microsoft/Phi-3-mini-4k-instruct"},
     decoder(3072, 32, 32, 32, 0, 8192, 32064)},
    {"phi-3.5-mini",
     {"microsoft/Phi-3.5-mini-instruct"},
     decoder(3072, 32, 32, 32, 0, 8192, 32064)},
    {"phi-4", {"microsoft/phi-4"}, decoder(5120, 40, 40, 10, 0, 17920, 100352)},
    {"phi-4-mini", {"microsoft/Phi-4-mini-instruct"}, decoder(3072, 32, 24, 8, 0, 8192, 200064)},
};

inline constexpr PublishedModel kQwen2Moes[] = {
    {"qwen1.5-moe-a2.7b",
     {"Qwen/Qwen1.5-MoE-A2.7B"},
     {.width = 2048,
      .layers = 24,
      .heads = 16,
      .kv_heads = 16,
      .mlp_width = 5632,
      .vocab_size = 151936,
      .experts = 60,
      .experts_per_token = 4,
      .expert_width = 1408,
      .shared_width = 5632}},
    // The shape that qwen2.5-3b has when its MLPs become experts
    // (engine/models/upcycled_weights.h).
    {"qwen2.5-3b-moe",
     {},
     {.width = 2048,
      .layers = 36,
      .heads = 16,
      .kv_heads = 2,
      .mlp_width = 11008,
      .vocab_size = 151936,
      .experts = 8,
      .experts_per_token = 2,
      .expert_width = 2752,
      .shared_width = 5504}},
};

inline constexpr PublishedModel kQwen3Moes[] = {
    {"qwen3-30b-a3b",
     {"Qwen/Qwen3-30B-A3B"},
     {.width = 2048,
      .layers = 48,
      .heads = 32,
      .kv_heads = 4,
      .head_dim = 128,
      .mlp_width = 6144,
      .vocab_size = 151936,
      .experts = 128,
      .experts_per_token = 8,
      .expert_width = 768}},
};

constexpr ModelSizes mixtral(std::int64_t width, std::int64_t layers, std::int64_t heads,
                             std::int64_t expert_width, std::int64_t vocab_size) {
  return {.width = width,
          .layers = layers,
          .heads = heads,
          .kv_heads = 8,
          .head_dim = 128,
          .vocab_size = vocab_size,
          .experts = 8,
          .experts_per_token = 2,
          .expert_width = expert_width};
}
inline constexpr PublishedModel kMixtrals[] = {
    {"mixtral-8x7b", {"mistralai/Mixtral-8x7B-v0.1"}, mixtral(4096, 32, 32, 14336, 32000)},
    {"mixtral-8x22b", {"mistralai/Mixtral-8x22B-v0.1"}, mixtral(6144, 56, 48, 16384, 32768)},
};

inline constexpr PublishedModel kOlmo2s[] = {
    {"olmo2-1b", {"allenai/OLMo-2-0425-1B"}, decoder(2048, 16, 16, 16, 0, 8192, 100352)},
    {"olmo2-7b", {"allenai/OLMo-2-1124-7B"}, decoder(4096, 32, 32, 32, 0, 11008, 100352)},
    {"olmo2-13b", {"allenai/OLMo-2-1124-13B"}, decoder(5120, 40, 40, 40, 0, 13824, 100352)},
    {"olmo2-32b", {"allenai/OLMo-2-0325-32B"}, decoder(5120, 64, 40, 8, 0, 27648, 100352)},
};

constexpr ModelSizes gemma2(std::int64_t width, std::int64_t layers, std::int64_t heads,
                            std::int64_t kv_heads, std::int64_t head_dim, std::int64_t mlp_width) {
  return decoder(width, layers, heads, kv_heads, head_dim, mlp_width, 256000);
}
inline constexpr PublishedModel kGemma2s[] = {
    {"gemma-2-2b", {"google/gemma-2-2b"}, gemma2(2304, 26, 8, 4, 256, 9216)},
    {"gemma-2-9b", {"google/gemma-2-9b"}, gemma2(3584, 42, 16, 8, 256, 14336)},
    {"gemma-2-27b", {"google/gemma-2-27b"}, gemma2(4608, 46, 32, 16, 128, 36864)},
};

inline constexpr PublishedModel kGemma3s[] = {
    {"gemma-3-270m", {"google/gemma-3-270m"}, decoder(640, 18, 4, 1, 256, 2048, 262144)},
    {"gemma-3-1b", {"google/gemma-3-1b-pt"}, decoder(1152, 26, 4, 1, 256, 6912, 262144)},
};

}  // namespace dstrain
