#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/run_layout.h"
#include "engine/base/unique_fd.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/recipe/load.h"
#include "engine/train/session/world.h"

namespace dstrain {

/// Where this job writes and where it goes on from, agreed by all ranks.
struct RunPlace {
  RunLayout directory{std::filesystem::path()};
  std::string attempt;                       ///< unique per start of the job, equal on all ranks
  std::unique_ptr<CheckpointReader> resume;  ///< nothing: start anew
  std::filesystem::path checkpoint = {};     ///< directory of `resume`
  bool resumes_here = false;                 ///< `resume` is a checkpoint of this directory
  bool new_phase = false;                    ///< `resume` ended the phase before
  UniqueFd lock = {};  ///< of the directory, on rank 0 of ranks without a launcher
};

/// A line for each setting of `loaded` that changes numbers and is not as in the run that saved
/// the checkpoint, and for a training split of another size. Empty where nothing differs.
[[nodiscard]] std::vector<std::string> changes_since(const CheckpointState& state,
                                                     const LoadedRecipe& loaded,
                                                     std::int64_t train_size);

/// Rank 0 takes the launcher's run directory or makes one under `output` and tells the others; all
/// choose the newest valid checkpoint of `resume` ("never", a run directory or a checkpoint
/// directory) together (engine/checkpoint/checkpoint_choice.h). Error{checkpoint} when there is
/// none, or when it leaves out other frozen weights than base_reference() of the phase of the
/// recipe that it is of. Ranks without a launcher have the directory alone: rank 0 locks it
/// (engine/base/run_lock.h).
[[nodiscard]] RunPlace agree_on_place(const World& world, RankRecordFile& record,
                                      const Recipe& recipe, const std::string& name,
                                      const std::string& resume);

}  // namespace dstrain
