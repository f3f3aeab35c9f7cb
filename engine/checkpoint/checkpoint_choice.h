#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/store/store.h"

namespace dstrain {

/// A checkpoint that all ranks have taken; both empty: none.
struct CheckpointChoice {
  std::filesystem::path path;
  std::unique_ptr<CheckpointReader> reader;  ///< knows what this rank has hashed already
  std::vector<std::string> problems;  ///< on rank 0: one line for each that was left out, and why
};

/// Collective over `ranks` ranks through `store`. Rank 0 calls `offer`, which returns directories,
/// the best first, and looks at the manifest and the sizes of each; the hashes are computed by all
/// ranks, each of its share of the files, so that the time of it does not grow with the job. All
/// take the first checkpoint in which no rank has found a fault. What `offer` throws goes to rank
/// 0's caller, and is Error{again} on the others.
[[nodiscard]] CheckpointChoice choose_checkpoint(
    Store& store, int rank, int ranks,
    const std::function<std::vector<std::filesystem::path>()>& offer);

}  // namespace dstrain
