#pragma once

#include "engine/chat/filters.h"

namespace dstrain::chat {

/// value.name and value[key], as jinja2's sandbox finds them: members before items for a dot, items
/// before members for brackets; undefined where there is neither. Fault for members of Python that
/// are not supported.
[[nodiscard]] Value member_of(const Value& value, std::string_view name, Budget& budget);
[[nodiscard]] Value item_of(const Value& value, const Value& key, Budget& budget);

/// The method `function` with its arguments.
[[nodiscard]] Value call_method(const Function& function, const Arguments& arguments,
                                Budget& budget);

/// (key, value) of a dict.
[[nodiscard]] List pairs_of(const Dict& dict, List::Kind kind, Budget& budget);

}  // namespace dstrain::chat
