#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Tar files as WebDataset names them and what lies in them.
namespace dstrain {

inline constexpr const char* kTarShards =
    "train-000000.tar ... in a folder, with val- or test- beside, or train-{000000..000146}.tar";

struct TarShards {
  std::filesystem::path root;
  std::vector<std::string> train, test;  ///< relative to it
  std::vector<std::string> unused;       ///< of further splits

  /// "in FOLDER: 147 tar files for training, the first is X; 7 for evaluation, the first is Y; left
  /// out: 3 of further splits, the first is Z"; empty for one tar alone.
  [[nodiscard]] std::string describe() const;
};

/// The tar files of data.path: a tar, a pattern of them or their folder, or folders in it. Those
/// for evaluation have the first word of kTestFolders that any has in its name; with a tar or a
/// pattern they lie in the same folder, since folders beside belong to other data. Nothing where it
/// is not there; Error{usage} for a pattern that is none.
[[nodiscard]] std::optional<TarShards> find_tar_shards(const std::string& path);

/// Whether a file is called as a tar is, compressed or not.
[[nodiscard]] bool is_tar_name(std::string_view name);

/// A member's name: the sample that it belongs to, and what it is of that, in lower case.
struct TarName {
  std::string key, ending;
};
/// KEY is a name up to its first dot; nothing for a name without both.
[[nodiscard]] std::optional<TarName> tar_name(std::string_view member);

}  // namespace dstrain
