#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "engine/report/run_data.h"

namespace dstrain::report {

/// Calls `read` with the text of a file, of at most 1 GiB; false when there is none, which is noted
/// in `run.missing`. What goes wrong is a problem of the run.
bool with_file(RunData& run, const std::filesystem::path& path,
               const std::function<void(const std::string&)>& read);

/// Calls `read` with each line, without its end.
void split_lines(std::string_view content, const std::function<void(std::string_view)>& read);

/// Calls `line` for each line that is a JSON object. Lines that are none, or for which `line` is
/// false, are counted; their number and the first one are a problem of the run.
void each_line(RunData& run, const std::filesystem::path& path,
               const std::function<bool(const nlohmann::json&)>& line);

}  // namespace dstrain::report
