#pragma once

#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/fd.h"

namespace dstrain::launcher {

/// From where a job goes on.
struct Resume {
  enum class Mode {
    never,   ///< a new run
    newest,  ///< "auto": the newest of this recipe that holds a complete checkpoint, else a new one
    path     ///< a run directory (continued), or a checkpoint directory (a new run starts from it)
  };
  Mode mode = Mode::never;
  std::string path = {};  ///< of Mode::path, as typed
};
/// "never" (or empty), "auto" or a path.
[[nodiscard]] Resume resume_from(const std::string& text);

/// Where a run will write, and from where its ranks resume; nothing is made yet.
struct ChosenRun {
  std::filesystem::path path;  ///< absolute; empty: a new one with time and id
  bool continued = false;      ///< it holds an earlier part of the run
  /// Argument of the ranks' `--resume`: a run directory, a checkpoint directory, or empty for a
  /// fresh start.
  std::string resume_from = {};
  /// The path of --resume, where the named run goes on from a checkpoint of its own instead.
  std::string left_aside = {};
  /// Runs that "auto" leaves out, since their names give a time that has not come yet.
  std::vector<std::filesystem::path> of_the_future = {};
};

/// The same once it is there.
struct RunDirectory : ChosenRun {
  bool made = false;  ///< it was not there before
  UniqueFd lock;      ///< held while the job lives: two jobs never share a run directory
};

/// The run directory or checkpoint that `--resume PATH` names, absolute. Error{usage} where there
/// is none.
[[nodiscard]] std::filesystem::path resume_source(const std::string& path);

/// The run directory is `<output>/<recipe>-<utc time>-<short id>`. With a `name` it is
/// `<output>/<name>`, continued unless under Mode::never when it holds a checkpoint; a run that has
/// none yet starts from the path of `resume`. Error{usage} when that path holds no checkpoint.
[[nodiscard]] ChosenRun choose_run(const std::filesystem::path& output, const std::string& recipe,
                                   const Resume& resume, std::time_t now,
                                   const std::string& name = {});
/// Short for a person: relative when it lies below the present folder.
[[nodiscard]] std::string short_path(const std::filesystem::path& path);
/// What people should know of the choice, a line each.
[[nodiscard]] std::vector<std::string> remarks(const ChosenRun& run, const Resume& resume);
/// Makes what choose_run() chose, or takes it over. Error{usage} when it is used by another job, or
/// the output folder cannot be written.
[[nodiscard]] RunDirectory open_run_directory(const std::filesystem::path& output,
                                              const std::string& recipe, const Resume& resume,
                                              std::time_t now, const std::string& name = {});

/// Removes a directory that this job made and in which nothing has come about.
void remove_refused(const RunDirectory& run);

/// Whether `directory` holds checkpoints/step-* with a manifest.
[[nodiscard]] bool has_checkpoint(const std::filesystem::path& directory);
struct NewestRun {
  std::optional<std::filesystem::path> run;
  std::vector<std::filesystem::path> of_the_future;  ///< later than a day from now
};
/// Newest run directory of `recipe` under `output` that holds a checkpoint, by the time in its
/// name. One whose clock was wrong would else be the newest for ever.
[[nodiscard]] NewestRun find_newest_run(const std::filesystem::path& output,
                                        const std::string& recipe, std::time_t now);

/// Files in a run directory by which agents of other hosts see that it is shared.
inline constexpr const char* kTokenPrefix = ".job-";

/// Renames an existing file to the first free "name.N.ext", so that a resumed run keeps what the
/// earlier part said.
void keep_previous(const std::filesystem::path& file);

}  // namespace dstrain::launcher
