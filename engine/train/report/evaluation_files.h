#pragma once

#include <filesystem>
#include <optional>

#include "engine/models/model.h"
#include "engine/report/confusion.h"
#include "engine/train/execute/step_outcome.h"

namespace dstrain {

/// What the evaluation counted, with the names of the model's classes, else their numbers; nothing
/// where it counted none.
[[nodiscard]] std::optional<report::Confusion> confusion_of(const EvaluationTotals& totals,
                                                            const Model& model);

/// Writes confusion.csv and classes.csv into `folder`.
void write_confusion(const std::filesystem::path& folder, const report::Confusion& confusion);

}  // namespace dstrain
