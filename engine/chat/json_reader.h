#pragma once

#include <string_view>

#include "engine/base/json.h"
#include "engine/chat/value.h"

namespace dstrain::chat {

/// The value of a JSON text, as Python's json.loads gives it: keys stay in their order, of equal
/// ones the last value holds. Error{limits.kind} as of parse_json, and for whole numbers beyond 64
/// bits.
[[nodiscard]] Value read_json_value(std::string_view text, const JsonPlace& place,
                                    const JsonLimits& limits = {}, Source source = {});

/// The same value with another source in all of its texts, lists and numbers.
[[nodiscard]] Value with_source(const Value& value, Source source);

}  // namespace dstrain::chat
