#pragma once

#include <string>
#include <vector>

#include "cmd/launch_job.h"
#include "launcher/job/submit.h"

namespace dstrain {

/// Fills in the job that is said in words (cmd/recipe_words.h): `more` are those after the first,
/// which stands in job.recipe; nothing to do without them. Under --dry-run prints the recipe.
/// `submit`: of a job for Slurm's queue, or null. Error{usage} for words that are not known, and
/// where the hosts are not NODES of PER_NODE ranks.
void take_words(const std::vector<std::string>& more, JobOptions& job,
                launcher::SubmitOptions* submit);

}  // namespace dstrain
