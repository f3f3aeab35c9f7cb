#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/weights/weight_file.h"

namespace dstrain {

/// "a, b and 7 more": at most 20 of them.
[[nodiscard]] std::string listed(const std::vector<std::string>& items, const char* separator);

/// The tensors of a Hugging Face folder, whichever of its files they lie in: model.safetensors, or
/// the shards of an index; where neither is there, pytorch_model.bin, or the shards of its index.
class WeightFolder {
 public:
  /// Error{data} when none is there, or index and files disagree.
  explicit WeightFolder(const std::filesystem::path& folder);

  struct Place {
    const WeightFile* file = nullptr;
    std::string name;  ///< in the file
    [[nodiscard]] const WeightFile::Entry& entry() const { return file->entries().at(name); }
  };

  /// The first of `names` that is there.
  [[nodiscard]] std::optional<Place> find(const std::vector<std::string>& names) const;
  /// File of each tensor.
  [[nodiscard]] const std::map<std::string, const WeightFile*>& tensors() const { return tensors_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void add_file(const std::filesystem::path& path);
  void add_index(const std::filesystem::path& index);

  std::filesystem::path path_;
  std::vector<std::unique_ptr<WeightFile>> files_;
  std::map<std::string, const WeightFile*> tensors_;
};

}  // namespace dstrain
