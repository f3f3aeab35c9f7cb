#pragma once

#include <string>
#include <string_view>

#include "engine/data/text/token_file.h"

namespace dstrain::text {

[[nodiscard]] std::string format_summary(const TokenFileSummary& summary);
/// False when `json` is no summary.
[[nodiscard]] bool parse_summary(std::string_view json, TokenFileSummary& summary);

}  // namespace dstrain::text
