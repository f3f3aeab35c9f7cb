#include "engine/hub/known_folders.h"

namespace dstrain::hub {
namespace {

constexpr KnownFolder kKnownFolders[] = {
    {"bloom-560m", "bigscience/bloom-560m", {}},
    {"bloom-1b7", "bigscience/bloom-1b7", {}},
    {"bloom-3b", "bigscience/bloom-3b", {}},
    {"bloom-7b1", "bigscience/bloom-7b1", {}},
    {"gpt2", "openai-community/gpt2", {}},
    {"pythia-160m", "EleutherAI/pythia-160m", {}},
    {"Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B", {}},
    {"Qwen2.5-3B", "Qwen/Qwen2.5-3B", {}},
    {"Qwen3-1.7B", "Qwen/Qwen3-1.7B", {}},
    {"Llama-3.2-1B", "meta-llama/Llama-3.2-1B", {}},
    {"SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M", {}},
    {"Mistral-7B-v0.3", "mistralai/Mistral-7B-v0.3", {}},
    {"OLMo-2-0425-1B", "allenai/OLMo-2-0425-1B", {}},
    {"gemma-2-2b", "google/gemma-2-2b", {}},
    {"gemma-3-270m", "google/gemma-3-270m", {}},
    {"Phi-4-mini-instruct", "microsoft/Phi-4-mini-instruct", {}},
    {"vit-base-patch16-224", "google/vit-base-patch16-224", {}},
    {"deit-small-distilled-patch16-224", "facebook/deit-small-distilled-patch16-224", {}},
    {"dinov2-small", "facebook/dinov2-small", {}},
    {"clip-vit-base-patch32", "openai/clip-vit-base-patch32", {}},
    {"siglip-base-patch16-224", "google/siglip-base-patch16-224", {}},
    {"mobilenetv2_100", "timm/mobilenetv2_100.ra_in1k", {}},
    {"squad", "rajpurkar/squad", "squad"},
    {"MetaMathQA", "meta-math/MetaMathQA", "metamathqa"},
};

}  // namespace

std::span<const KnownFolder> known_folders() { return kKnownFolders; }

}  // namespace dstrain::hub
