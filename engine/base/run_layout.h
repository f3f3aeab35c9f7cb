#pragma once

#include <filesystem>
#include <string>

namespace dstrain {

/// Where everything of a run lies. Paths only; who writes a file makes it.
class RunDirectory {
 public:
  /// Of a run that exists or that another process has made.
  explicit RunDirectory(std::filesystem::path root) : root_(std::move(root)) {}
  /// Makes `parent`/<name>-<utc time>-<short id> with its folders; Error{usage} naming the path
  /// when that fails.
  static RunDirectory create(const std::filesystem::path& parent, const std::string& name);
  /// Makes the folders inside, where they are missing.
  void make_folders() const;

  [[nodiscard]] const std::filesystem::path& root() const { return root_; }
  [[nodiscard]] std::filesystem::path recipe() const { return root_ / "recipe.yaml"; }
  [[nodiscard]] std::filesystem::path plan() const { return root_ / "plan.json"; }
  [[nodiscard]] std::filesystem::path metrics() const { return root_ / "metrics.jsonl"; }
  [[nodiscard]] std::filesystem::path events() const { return root_ / "events.jsonl"; }
  [[nodiscard]] std::filesystem::path checkpoints() const { return root_ / "checkpoints"; }
  [[nodiscard]] std::filesystem::path tensorboard() const { return root_ / "tensorboard"; }

 private:
  std::filesystem::path root_;
};

/// The folder of checkpoints that a person means: `path` itself or `path`/checkpoints. Error{usage}
/// when there is no such folder.
[[nodiscard]] std::filesystem::path find_checkpoints_folder(const std::filesystem::path& path);

}  // namespace dstrain
