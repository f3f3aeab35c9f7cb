#pragma once

#include <filesystem>

#include "engine/recipe/recipe.h"

namespace dstrain {

/// Merges the traces of a run that has ended, each window for itself. Error where a trace is broken
/// or the disk is full.
void merge_run_traces(const TraceConfig& config, const std::filesystem::path& run);

}  // namespace dstrain
