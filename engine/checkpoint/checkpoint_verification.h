#pragma once

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/store/store.h"

namespace dstrain {

/// What one rank brings to the verification of a checkpoint after its save.
struct VerifyTask {
  std::filesystem::path path;  ///< of the checkpoint
  std::string prefix;          ///< of keys of the store, the same on all ranks, of this save alone
  FileRecord own;              ///< that this rank has written
  int rank = 0, world_size = 1;
  int local_ranks = 1;  ///< of its host; that of rank 0 counts
  std::string host;
  double bytes_per_s = 0;  ///< read at most; 0: as fast as it goes
};
/// Reads the file of a rank of the next host past the page cache and compares its hash. Collective.
/// On rank 0 it leaves what all have found in VERIFIED.json beside the manifest and returns it;
/// nothing on other ranks, when `stop` comes first, or when the checkpoint was removed meanwhile.
[[nodiscard]] std::optional<VerifyResult> verify_saved(Store& store, const VerifyTask& task,
                                                       const std::stop_token& stop);

/// What VERIFIED.json says of this checkpoint; nothing when there is none, or when it is of another
/// manifest.
struct VerifyRecord {
  std::vector<std::string> damaged;  ///< a line each; empty: all files are as they were written
};
[[nodiscard]] std::optional<VerifyRecord> read_verification(const std::filesystem::path& path);

}  // namespace dstrain
