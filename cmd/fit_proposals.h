#pragma once

#include <string>
#include <vector>

#include "engine/program/simulate.h"
#include "engine/recipe/load.h"

namespace dstrain {

/// Settings by which a recipe fits the memory of a rank.
struct FitProposal {
  std::vector<std::string> settings;  ///< "batch.micro=4"
  Bytes memory = 0;                   ///< of the fullest rank
  double step_s = 0;                  ///< planned
};

/// A recipe against the memory that its ranks have.
struct FitReport {
  std::string machine;
  Bytes needed = 0, limit = 0;         ///< of the fullest rank in its fullest phase
  std::vector<FitProposal> proposals;  ///< only where it does not fit; the fastest first

  [[nodiscard]] bool fits() const { return needed <= limit; }
};

/// Where the recipe does not fit: one micro-batch at a time, the largest smaller batch.micro,
/// memory.recompute: auto or, where that is not enough, also memory.tiles, the next ZeRO stages and
/// states on the host that do, each by itself, else with recomputation, else also with a smaller
/// batch.micro. batch.global stays. Proposals leave kMemoryReserve of the device.
[[nodiscard]] FitReport look_for_fit(const std::string& recipe,
                                     const std::vector<std::string>& overrides, int ranks,
                                     const Machine& machine);

/// "a rank needs 93.8 GiB, and h100 has 79.2 GiB".
[[nodiscard]] std::string misfit_text(const FitReport& report);
/// A line for each proposal, with its memory and step; or that nothing of these fits.
[[nodiscard]] std::string proposals_text(const FitReport& report);

}  // namespace dstrain
