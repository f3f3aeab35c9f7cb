#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/kernels/nf4/nf4.h"
#include "engine/mesh/shard.h"
#include "engine/models/family.h"
#include "engine/models/model.h"
#include "engine/weights/safetensors.h"

namespace dstrain {

/// Source of a model's first weights: a Hugging Face folder, or the initialisation of the paper.
/// Any element range of any tensor can be had by itself, so each rank reads or draws only what it
/// owns.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Elements [range) of what this rank holds of `parameter` (all parts, flat), fp32.
  void read(const Parameter& parameter, Range range, std::span<float> out) const;
  /// Elements [begin, begin + out.size()) of the whole flattened tensor of `part`, a part of
  /// `parameter`; fp32.
  virtual void read_whole(const Parameter& parameter, const Piece& part, std::int64_t begin,
                          std::span<float> out) const = 0;
  /// Seed with which draw_weights gives every element; nullopt where any may come from elsewhere.
  [[nodiscard]] virtual std::optional<std::int64_t> seed() const { return std::nullopt; }
  /// The whole tensor of `part` in 4 bits; nothing where the source has it otherwise.
  [[nodiscard]] virtual std::optional<Nf4Tensor> read_nf4(const Piece& /*part*/) const {
    return std::nullopt;
  }
  /// All elements of an untrained tensor of fp32; false where it has its initial value.
  [[nodiscard]] virtual bool read_state(const BlockState& state, std::span<float> out) const = 0;
};
/// Counter-based: a pure function of (seed, tensor name, element).
[[nodiscard]] std::unique_ptr<WeightSource> make_random_weights(std::int64_t seed);
/// All tensors of `model` from `folder` (model.safetensors or an index of shards; fp32, fp16 or
/// bf16; under any name that files of its family use). A head of another class count is drawn at
/// random and named in `notes`, and so are adapters. Error{data} lists all missing and misshapen
/// tensors at once.
[[nodiscard]] std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& folder,
                                                         Model& model, std::int64_t seed,
                                                         std::vector<std::string>& notes);

/// Whether the files in `folder` have timm's names for tensors of `model` rather than ours.
[[nodiscard]] bool has_timm_names(const std::filesystem::path& folder, const Model& model);

/// What the head of each file of weights that an export writes says of its origin.
[[nodiscard]] const std::map<std::string, std::string>& export_metadata();
/// Error{usage} where `folder` holds weights that no export wrote, or is one of `inputs`: those
/// weights would be lost.
void refuse_foreign_weights(const std::filesystem::path& folder,
                            const std::vector<std::filesystem::path>& inputs);

/// All values of the whole tensor, fp32.
using TensorReader = std::function<std::vector<float>(const Piece& part)>;

struct ExportOptions {
  DType dtype = DType::f32;
  std::uint64_t shard_bytes = 5'000'000'000;  ///< most in one file; a larger tensor has its own
  FileTensor (*tensor)(const FileTensor& ours) = nullptr;  ///< Family::timm_tensor; null: our names
};

/// Writes config.json and model.safetensors, or shards with an index, that transformers loads. Each
/// tensor is asked for once, when it is written, so that one at a time is in memory; an untrained
/// one as its stored_part, and it keeps its type whatever `options` says.
void export_weights(const std::filesystem::path& folder, const Model& model,
                    const TensorReader& read, const ExportOptions& options);

/// Copies what transformers' tokenizers read, where `from` has it; returns the names of the copied
/// files.
std::vector<std::string> copy_tokenizer_files(const std::filesystem::path& from,
                                              const std::filesystem::path& to);
/// The same of what generate() goes by: special tokens, sampling.
std::vector<std::string> copy_generation_file(const std::filesystem::path& from,
                                              const std::filesystem::path& to);

}  // namespace dstrain
