#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "engine/models/model.h"
#include "engine/nn/linear.h"

namespace dstrain {

/// Gives each linear map that lora.targets names a low-rank adapter, and freezes everything else
/// but the tensors that lora.also_train names. Maps that are multiplied as one (query, key, value)
/// have one adapter each. A pattern without a dot is held against the last part of a map's name,
/// one with a dot against all of it, under any of the names that files have for it. Error{usage}
/// names the key and a pattern that matches nothing.
void add_adapters(Model& model, const LoraConfig& config);

/// A linear map of `model` that has an adapter.
struct AdaptedMap {
  Linear* linear = nullptr;
  std::size_t part = 0;
  [[nodiscard]] const std::string& name() const { return linear->parts().at(part).name; }
};
[[nodiscard]] std::vector<AdaptedMap> adapted_maps(const Model& model);

/// What add_adapters calls the tensors of the adapter of the linear map `map`: PEFT's names.
[[nodiscard]] std::string adapter_prefix(const std::string& map);
/// Whether `tensor` belongs to an adapter.
[[nodiscard]] bool is_adapter(const std::string& tensor);

/// scale of the product of an adapter's matrices: alpha / rank; of rsLoRA alpha / sqrt(rank)
/// (arXiv:2312.03732).
[[nodiscard]] inline double adapter_scale(const LoraConfig& config) {
  return config.alpha / (config.rslora ? std::sqrt(config.rank) : config.rank);
}

}  // namespace dstrain
