#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/foreign_tensor.h"

namespace dstrain {

/// What an optimizer does with one tensor, as far as its file says.
struct ForeignRule {
  std::optional<double> weight_decay, eps, momentum;
  std::vector<double> betas;
};

/// A checkpoint of another program, opened: what its files say, and where each tensor lies in them,
/// under the names that the program has for it. Nothing but headers has been read.
struct ForeignCheckpoint {
  using Tensors = std::map<std::string, ForeignTensor>;

  std::filesystem::path path;
  std::string layout;  ///< "ZeRO-2 of DeepSpeed 0.19.8"
  int ranks = 1;       ///< that wrote it

  std::int64_t step = 0;             ///< steps done, skipped ones included
  std::int64_t samples = -1;         ///< seen so far; -1: not said
  std::int64_t optimizer_steps = 0;  ///< updates that Adam's bias correction counts
  std::int64_t skipped_steps = 0;
  std::int64_t batch = 0;  ///< samples of a step; 0: not said
  double loss_scale = 1;
  std::int64_t good_steps = 0;  ///< since the last change of the loss scale

  Tensors weights;  ///< in the widest type that the files have
  /// By moment ("exp_avg"), of the trained tensors.
  std::map<std::string, Tensors> moments;
  std::map<std::string, ForeignRule> rules;  ///< of the trained tensors
  /// What the forward pass used, where that is another copy: the master weight, rounded.
  Tensors copies;
  /// Names of one tensor; the first has no values of its own.
  std::map<std::string, std::string> shared;
  bool has_moments = true;
  std::int64_t extra_updates = 0;  ///< that the optimizer made before the first step
  std::vector<std::string> notes;  ///< what a person should know
};

/// What a layout whose optimizer file has no names needs to know of the model.
struct ForeignHints {
  /// Names of the trained tensors in the order in which transformers' model registers them; empty:
  /// not known.
  std::vector<std::string> order;
  /// All names that files may have for the trained tensors.
  std::set<std::string> trained = {};
  enum class Moments {
    all,
    named,  ///< those whose file says of which tensor they are; the order of others is not proved
    none,
  };
  Moments moments = Moments::all;
};

/// Finds out what `path` is and opens it: a folder of DeepSpeed (ZeRO 0 to 3, universal), of
/// torch's distributed checkpoints (FSDP2), of whole FSDP states, of a trainer of transformers, or
/// of weights. A folder with a file `latest` means the checkpoint that it names. Error{data} names
/// the file that is missing, cut or of another step; Error{usage} says why a layout is not read and
/// what would do.
[[nodiscard]] ForeignCheckpoint open_foreign(const std::filesystem::path& path,
                                             const ForeignHints& hints);

}  // namespace dstrain
