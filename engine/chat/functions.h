#pragma once

#include <string>
#include <string_view>

#include "engine/chat/filters.h"
#include "engine/chat/template.h"

namespace dstrain::chat {

/// Functions that every template may call, those included that only get a clear refusal.
[[nodiscard]] bool is_function(std::string_view name);

/// range(..)
[[nodiscard]] Value range_of(const Arguments& arguments, Budget& budget);
/// strftime_now(format)
[[nodiscard]] Value formatted_date(const Day& date, const Arguments& arguments);

}  // namespace dstrain::chat
