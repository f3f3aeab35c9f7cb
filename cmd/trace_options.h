#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/trace/analysis.h"

namespace dstrain {

/// "4-6" or "5"; empty: all. Error{usage} else.
void set_steps(trace::AnalysisOptions& options, const std::string& text);
/// "0,2-4"; empty: all. Error{usage} else.
[[nodiscard]] std::vector<int> parse_ranks(const std::string& text);
[[nodiscard]] trace::GroupBy parse_group_by(const std::string& text);
/// Files by name into `folder`, which is made where it is missing.
void write_csv(const std::string& folder, const std::map<std::string, std::string>& files);

}  // namespace dstrain
