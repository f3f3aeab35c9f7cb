#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/families.h"
#include "engine/weights/transposed.h"

namespace dstrain {

struct Model;
struct ModelInputs;

/// A tensor as a file has it.
struct FileTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  bool operator==(const FileTensor&) const = default;
};

/// A family of models: how one is made, and what files call its tensors.
struct Family {
  std::string_view name;  ///< of its row in engine/recipe/families.cpp: config.json's model_type
  /// From the recipe's name, or config.json of its `weights`, and its overrides. Error{usage} lists
  /// all that does not fit; Error{data} when config.json asks for what dstrain does not do.
  Model (*make)(const ModelConfig&, const ModelFamily&, const ModelInputs&);
  /// Names under which files may keep the tensor that we call `name`, the usual first.
  std::vector<std::string> (*file_names)(const std::string& name);
  /// The name that transformers 5 has for it in memory, which PEFT writes into its files.
  std::string (*memory_name)(const std::string& name);
  std::string_view embedding;        ///< tensor with a row for each token; empty for images
  std::string_view classifier;       ///< module with a row for each class; empty for text
  std::string_view with_classifier;  ///< transformers' class of models that have that module
  /// What timm calls a tensor of ours, and the shape that it gives it, with as many elements in the
  /// same order; null: timm does not have the family, or has it as we do.
  FileTensor (*timm_tensor)(const FileTensor& tensor) = nullptr;
  /// Ends of names of tensors that earlier classes of transformers saved and computed all the same.
  std::span<const std::string_view> buffers = {};

  /// Ends of names of matrices that files have as [inputs, outputs], as transformers' Conv1D does.
  std::span<const std::string_view> transposed = {};

  /// How files have a tensor of ours; nothing where they have it as we do.
  [[nodiscard]] std::optional<TransposedMatrix> turned_in_file(
      std::string_view tensor, const std::vector<std::int64_t>& shape) const;
  [[nodiscard]] const ModelFamily& recipe() const { return *family_of_type(name); }
};

[[nodiscard]] std::span<const Family> families();
/// By the recipe's name, else by the model_type of its weights. Error{usage} or Error{data} when
/// dstrain knows none.
[[nodiscard]] const Family& find_family(const ModelConfig& config);

}  // namespace dstrain
