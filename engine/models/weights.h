#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/mesh/shard.h"
#include "engine/models/model.h"
#include "engine/models/safetensors.h"

namespace dstrain {

/// Source of a model's first weights: a Hugging Face folder, or the initialisation of the paper.
/// Any element range of any tensor can be had by itself, so each rank reads or draws only what it
/// owns.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Elements [range) of `parameter` (all parts, flat), fp32.
  virtual void read(const Parameter& parameter, Range range, std::span<float> out) const = 0;
};
/// Counter-based: a pure function of (seed, tensor name, element).
[[nodiscard]] std::unique_ptr<WeightSource> make_random_weights(std::int64_t seed);
/// All tensors of `model` from `folder` (model.safetensors or an index of shards; fp32, fp16 or
/// bf16; names of both transformers generations). A head of another class count is drawn at random
/// and named in `notes`. Error{data} lists all missing and misshapen tensors at once.
[[nodiscard]] std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& folder,
                                                         Model& model, std::int64_t seed,
                                                         std::vector<std::string>& notes);

/// Writes config.json and model.safetensors that transformers loads. `tensors` are whole, fp32, by
/// part name.
void export_weights(const std::filesystem::path& folder, Model& model,
                    const std::map<std::string, std::vector<float>>& tensors, DType dtype);

}  // namespace dstrain
