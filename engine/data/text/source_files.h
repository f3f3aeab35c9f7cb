#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/recipe.h"

namespace dstrain::text {

/// Files that are read one after the other.
struct SourceFiles {
  std::vector<std::filesystem::path> files = {};
  bool parquet = false;
  bool tar = false;
  bool unanswerable = false;  ///< SQuAD v2, where only the folder can say it (parquet)
};

/// What data.path holds. `test` has no files where the data set has no test split.
struct Sources {
  SourceFiles train = {}, test = {};
  std::string note = {};  ///< which files are which split, where names say it; or nothing
};

// For the formats.

/// Files of `folder` whose names begin and end so, by name.
[[nodiscard]] std::vector<std::filesystem::path> list_files(const std::filesystem::path& folder,
                                                            std::string_view begin,
                                                            std::string_view end);
/// Whether `path` is meant as the file itself; what is neither that nor a folder is refused.
[[nodiscard]] bool is_file(const std::filesystem::path& path);
/// The file, or none where it is not there.
[[nodiscard]] SourceFiles json_file(const std::filesystem::path& file);
/// The parquet files of `folder` whose names begin so. Error{data} when a part is missing.
[[nodiscard]] SourceFiles parquet_files(const std::filesystem::path& folder,
                                        std::string_view begin);
enum class Folders { left, taken };
/// The tar files of data.path: a tar, a pattern of tars or, where `folders` are taken, their
/// folder. Nothing where it is none of these.
[[nodiscard]] std::optional<Sources> tar_sources(const DataConfig& data, Folders folders);
/// Error{data}: data.path holds none of the files `expected`.
[[noreturn]] void fail_missing(const DataConfig& data, const char* expected);

}  // namespace dstrain::text
