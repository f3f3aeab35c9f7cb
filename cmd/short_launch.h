#pragma once

#include <string>
#include <vector>

#include "cmd/submit_options.h"

namespace dstrain {

/// Fills in the job of `dstrain launch MODEL STRATEGY RANKS BATCH EPOCHS`: `more` are the words
/// after the first, which stands in job.recipe. Says on stderr what it set; under --dry-run prints
/// the recipe. Nothing to do without further words. Error{usage} for words that are not known.
void take_short_form(const std::vector<std::string>& more, JobOptions& job, SubmitRequest& submit);

}  // namespace dstrain
