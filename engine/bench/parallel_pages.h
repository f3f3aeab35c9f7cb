#pragma once

#include <filesystem>
#include <vector>

#include "engine/bench/tables.h"

namespace dstrain::bench {

/// parallel.md, parallel.csv (a row for each case; the keys of the rows of parallel.json that are
/// no lists) and parallel.json: `rows` in seconds, bytes and shares of 1, with stages and
/// collectives, and the tables.
[[nodiscard]] BenchPages parallel_pages(const std::vector<CaseResult>& results);

/// Writes the traces of a run, unpacked, to `folder` as rank0_trace.json and rank0_actions.json.
/// Returns how many ranks; 0: the run has no traces. Error{checkpoint} where a file cannot be
/// written; that of make_folder where the folder cannot be made.
int copy_profiles(const std::filesystem::path& run, const std::filesystem::path& folder);

}  // namespace dstrain::bench
