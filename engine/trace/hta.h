#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace dstrain::trace {

/// The figures of HolisticTraceAnalysis 0.5.0 by its own rules: whole microseconds (starts rounded
/// up, ends down), types by name, `cuda_sync` counted, the last ProfilerStep left out. One object;
/// keys are the names of HTA's functions without "get_", values lists of flat rows under the names
/// of its columns. For gpu_kernel_breakdown these are two, `kernel_type` and `kernels`. A figure
/// that HTA fails on is null for that rank. Rows of the same start are taken in the order of the
/// file, where HTA leaves the order open, and types that ran for 0 us are left out.
///
/// `files`: one of each rank. Error{data} where a file cannot be read or times cannot be rounded as
/// HTA does, Error{usage} for a merged file.
[[nodiscard]] nlohmann::ordered_json as_hta(const std::vector<std::filesystem::path>& files,
                                            const std::vector<int>& ranks, bool salvage);

}  // namespace dstrain::trace
