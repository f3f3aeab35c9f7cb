#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/foreign_checkpoint.h"
#include "engine/weights/transposed.h"

namespace dstrain {

/// A tensor of the model that a recipe trains.
struct WantedTensor {
  std::string name;  ///< as our checkpoints call it
  std::vector<std::int64_t> shape;
  std::vector<std::string> file_names;  ///< that other programs may have for it
  /// How they have it, and its moments, where that is not as we do.
  std::optional<TransposedMatrix> turned = {};
  std::vector<std::string> ties = {};     ///< under which files may have it once more
  std::vector<std::string> moments = {};  ///< that its update rule has; of a frozen tensor none
  bool trained = true;
  bool decay = true;
  /// For a frozen tensor: elements from `begin` on of the weights that the recipe starts from.
  std::function<void(std::int64_t begin, std::span<float> out)> base = {};
};

/// A tensor that no gradient changes, which checkpoints keep as they do.
struct WantedState {
  Piece stored;                         ///< as our checkpoints have it
  std::vector<std::string> file_names;  ///< that other programs may have for it
  std::vector<float> initial;           ///< as stored: what it is where the files have none
  bool is_float = true;                 ///< else the files' numbers are not taken
};

/// The recipe's side of what is compared; a difference is an error unless its key is accepted.
struct ImportRules {
  double weight_decay = 0, eps = 0, momentum = 0;
  std::vector<double> betas;
  std::int64_t batch = 0;
};

struct ImportOptions {
  std::filesystem::path root;    ///< folder of checkpoints
  std::set<std::string> accept;  ///< keys whose differences are taken
  bool weights_only = false;     ///< a checkpoint of step 0 with these weights and new moments
  bool dry_run = false;          ///< everything is read and checked, nothing written
  std::string base;              ///< base_reference() of the recipe
  std::string recipe;            ///< resolved YAML
  std::string attempt;           ///< names the temporary folder
};

struct ImportResult {
  CheckpointState state;
  std::filesystem::path path;  ///< of the checkpoint; empty in a dry run
  std::int64_t tensors = 0, bytes = 0;
  double seconds = 0;
  std::vector<std::string> notes;  ///< what was not taken, what differs
};

/// Writes what `foreign` holds as a checkpoint that dstrain goes on from, chunk by chunk, renamed
/// into place when it is whole. Beforehand every name, shape and rule is compared; while it is
/// read, master weights are held against the copy that the forward pass used, bit for bit, tied
/// tensors and frozen ones against each other, and values must be finite.
/// Error{data} or Error{usage} lists what does not fit; then nothing is written.
[[nodiscard]] ImportResult import_checkpoint(const ForeignCheckpoint& foreign,
                                             const std::vector<WantedTensor>& wanted,
                                             const std::vector<WantedState>& states,
                                             const ImportRules& rules,
                                             const ImportOptions& options);

}  // namespace dstrain
