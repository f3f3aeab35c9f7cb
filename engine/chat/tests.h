#pragma once

#include <string_view>

#include "engine/chat/filters.h"

namespace dstrain::chat {

[[nodiscard]] bool is_test(std::string_view name);
/// value is name(arguments)
[[nodiscard]] bool apply_test(std::string_view name, const Value& value, const Arguments& arguments,
                              Budget& budget);

}  // namespace dstrain::chat
