#pragma once

#include <string_view>

#include "engine/chat/budget.h"
#include "engine/chat/value.h"

namespace dstrain::chat {

/// left + right and the like, with Python's rules. Fault beyond 64 bits, and for types that Python
/// does not combine.
[[nodiscard]] Value combined(std::string_view symbol, const Value& left, const Value& right,
                             Budget& budget);
/// -value or +value
[[nodiscard]] Value signed_value(std::string_view symbol, const Value& value);
/// value[begin:end:step]; a bound may be none.
[[nodiscard]] Value slice_of(const Value& value, const Value& begin, const Value& end,
                             const Value& step, Budget& budget);

}  // namespace dstrain::chat
