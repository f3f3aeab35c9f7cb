#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace dstrain {

/// Whether a file of parquet holds the split "train", "test" or "validation": SPLIT.parquet or
/// SPLIT-00000-of-00008.parquet.
inline bool is_parquet_of(const std::filesystem::path& file, const std::string& split) {
  const std::string name = file.filename().string();
  return name.ends_with(".parquet") &&
         (name.starts_with(split + "-") || name == split + ".parquet");
}

/// `folder` and the folders in it, by name, as far as they hold training files of parquet: where
/// the Hub's data sets have theirs.
inline std::vector<std::filesystem::path> parquet_places(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> places;
  const auto look = [&](const std::filesystem::path& place) {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(place, none)) {
      if (is_parquet_of(entry.path(), "train")) return places.push_back(place);
    }
  };
  look(folder);
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.is_directory(none) && !entry.path().filename().string().starts_with('.'))
      look(entry.path());
  }
  std::ranges::sort(places);
  return places;
}

}  // namespace dstrain
