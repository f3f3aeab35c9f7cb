#pragma once

#include <string>

#include "engine/draft/draft.h"
#include "engine/program/simulate.h"

namespace dstrain {

/// A drafted recipe and what a step of it takes.
struct PlannedDraft {
  draft::Choices choices;
  std::string yaml;
  Bytes memory = 0, limit = 0;  ///< of the fullest rank
  double step_s = 0;

  [[nodiscard]] bool fits() const;
};

/// "rtx4090": without what is said of its rates.
[[nodiscard]] std::string card_name(const Machine& machine);

/// The draft with the batch.micro whose step is the fastest of those that fit the memory of
/// `machine`, recomputing only where nothing fits without; where nothing fits at all,
/// batch.micro 1.
[[nodiscard]] PlannedDraft planned_draft(const draft::Facts& facts, draft::Choices choices,
                                         const std::string& title, const Machine& machine);

}  // namespace dstrain
