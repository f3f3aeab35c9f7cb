#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace dstrain {

/// Names of the files of a run directory that are also written or sent without its path.
namespace run_file {
inline constexpr const char* kRecipe = "recipe.yaml";
inline constexpr const char* kEnvironment = "environment.json";
inline constexpr const char* kManifest = "MANIFEST.json";  ///< of a checkpoint
}  // namespace run_file

/// Where everything of a run lies. Paths only; who writes a file makes it.
class RunLayout {
 public:
  explicit RunLayout(std::filesystem::path root) : root_(std::move(root)) {}
  /// Layout of the run that holds `checkpoint`.
  [[nodiscard]] static RunLayout around(const std::filesystem::path& checkpoint) {
    return RunLayout(checkpoint.parent_path().parent_path());
  }

  [[nodiscard]] const std::filesystem::path& root() const { return root_; }
  [[nodiscard]] std::filesystem::path recipe() const { return root_ / run_file::kRecipe; }
  [[nodiscard]] std::filesystem::path plan() const { return root_ / "plan.json"; }
  [[nodiscard]] std::filesystem::path failure() const { return root_ / "failure.json"; }
  [[nodiscard]] std::filesystem::path metrics() const { return root_ / "metrics.jsonl"; }
  [[nodiscard]] std::filesystem::path events() const { return root_ / "events.jsonl"; }
  /// Counts of the evaluation of images that run.best chose, else of the last.
  [[nodiscard]] std::filesystem::path confusion() const { return root_ / "confusion.csv"; }
  [[nodiscard]] std::filesystem::path classes() const { return root_ / "classes.csv"; }
  [[nodiscard]] std::filesystem::path tensorboard() const { return root_ / "tensorboard"; }
  [[nodiscard]] std::filesystem::path wandb() const { return root_ / "wandb"; }
  [[nodiscard]] std::filesystem::path traces() const { return root_ / "traces"; }
  [[nodiscard]] std::filesystem::path trace_request() const { return root_ / "trace_request.json"; }
  [[nodiscard]] std::filesystem::path checkpoints() const { return root_ / "checkpoints"; }
  [[nodiscard]] std::filesystem::path ranks() const { return root_ / "ranks"; }
  [[nodiscard]] std::filesystem::path rank_log(int rank) const;    ///< output of one rank
  [[nodiscard]] std::filesystem::path rank_lines(int rank) const;  ///< its timed steps
  [[nodiscard]] std::filesystem::path clocks() const { return root_ / "clocks.jsonl"; }
  [[nodiscard]] std::filesystem::path srun_log() const { return ranks() / "srun.log"; }

  /// Makes the folders inside, where they are missing; Error{usage} or Error{checkpoint} naming the
  /// path when that fails.
  void make_folders() const;

 private:
  std::filesystem::path root_;
};

/// Makes the directory `<parent>/<stem>-<utc time>-<short id>`, whose name no other run has, and
/// returns its path. Error{usage} when it cannot, Error{checkpoint} when the disk is full.
[[nodiscard]] std::filesystem::path make_dated_directory(const std::filesystem::path& parent,
                                                         const std::string& stem, std::time_t now);
/// The time in the name of a directory that make_dated_directory made for `stem`, in an order that
/// sorts; empty for any other name.
[[nodiscard]] std::string time_in_name(const std::string& name, const std::string& stem);

/// "step-00000100".
[[nodiscard]] std::string checkpoint_name(std::int64_t step);
/// The step of a directory called "step-00000100"; nothing for any other name, temporary ones
/// included.
[[nodiscard]] std::optional<std::int64_t> parse_checkpoint_name(const std::filesystem::path& path);
/// "step-00000100.tmp-<attempt>", where a save is collected before it is renamed.
[[nodiscard]] std::string temporary_checkpoint_name(std::int64_t step, const std::string& attempt);
[[nodiscard]] bool is_temporary_checkpoint(const std::filesystem::path& path);

/// Whether `directory` is a checkpoint that was completed: it has a manifest. Its content is for
/// the reader to check.
[[nodiscard]] bool is_checkpoint(const std::filesystem::path& directory);
/// The folder of checkpoints that a person means: `path` itself or `path`/checkpoints. Error{usage}
/// when there is no such folder.
[[nodiscard]] std::filesystem::path find_checkpoints_folder(const std::filesystem::path& path);

}  // namespace dstrain
