#pragma once

#include <filesystem>

namespace dstrain::trace {

inline constexpr int kMaxTraceSteps = 100;

/// Asks the run in `run` to record `steps` steps, from 1 to kMaxTraceSteps. Error{usage}: no run is
/// there, or it has been asked already; Error{checkpoint}: the file cannot be written.
void write_request(const std::filesystem::path& run, int steps);
/// Whether the request in `run` has not been taken yet.
[[nodiscard]] bool is_requested(const std::filesystem::path& run);
/// Takes the request away. Returns its steps; 0: there is none, or it is broken.
int take_request(const std::filesystem::path& run);

}  // namespace dstrain::trace
