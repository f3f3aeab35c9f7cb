#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/bench/parallel_tables.h"

namespace dstrain::bench {

/// parallel.md, and what the terminal shows.
[[nodiscard]] report::Document parallel_document(const std::vector<BenchTable>& tables,
                                                 const std::vector<ParallelResult>& results);
/// parallel.csv: a row for each way; the keys of parallel.json's rows that are no lists.
[[nodiscard]] std::string parallel_csv(const std::vector<ParallelResult>& results);
/// parallel.json: `rows` in seconds, bytes and shares of 1, with stages and collectives, and the
/// tables.
[[nodiscard]] nlohmann::ordered_json parallel_json(const std::vector<BenchTable>& tables,
                                                   const std::vector<ParallelResult>& results);

/// Writes the traces of a run, unpacked, to `folder` as rank0_trace.json and rank0_actions.json.
/// Returns how many ranks; 0: the run has no traces. Error{checkpoint} where a file cannot be
/// written; that of make_folder where the folder cannot be made.
int copy_profiles(const std::filesystem::path& run, const std::filesystem::path& folder);

}  // namespace dstrain::bench
