#pragma once

#include <string>
#include <string_view>

#include "engine/recipe/tree.h"

namespace dstrain::importing {

/// The value of a JSON text, with the place of every key and value. Error{usage} names file, line
/// and column of what is no JSON: comments, NaN, a doubled key, a number beyond double, text that
/// is not UTF-8; at most 1 MiB, 100 deep. A byte order mark is skipped.
[[nodiscard]] Node read_json_tree(std::string_view text, const std::string& file);

}  // namespace dstrain::importing
