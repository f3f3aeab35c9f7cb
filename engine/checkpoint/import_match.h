#pragma once

#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/foreign_checkpoint.h"
#include "engine/checkpoint/import.h"

namespace dstrain {

/// A tensor of the model and what the files have of it.
struct Match {
  const WantedTensor* wanted = nullptr;
  std::string found;  ///< name in the files
  const ForeignTensor* weight = nullptr;
  std::vector<const ForeignTensor*> moments = {};  ///< as wanted->moments
  std::vector<const ForeignTensor*> copies = {};   ///< that must agree with the weight, rounded
};
using Matches = std::vector<Match>;

/// Finds each wanted tensor under one of its names, a common prefix of all names ("module.",
/// "_orig_mod.") left out, with its moments. Error{data} lists the tensors that are missing, have
/// another shape or no moments; Error{usage} says where the recipe freezes what was trained or the
/// other way round. What the files have beyond goes into `notes`.
[[nodiscard]] Matches match_tensors(const ForeignCheckpoint& foreign,
                                    const std::vector<WantedTensor>& wanted, bool weights_only,
                                    std::vector<std::string>& notes);

/// Holds the optimizer's settings in the files against the recipe's: Error{usage} lists keys that
/// differ and are not in `accept`; those that are go into `notes`.
void check_rules(const ForeignCheckpoint& foreign, const Matches& matches, const ImportRules& rules,
                 const std::set<std::string>& accept, std::vector<std::string>& notes);

}  // namespace dstrain
