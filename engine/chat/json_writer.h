#pragma once

#include <optional>
#include <string>

#include "engine/chat/budget.h"
#include "engine/chat/value.h"

namespace dstrain::chat {

/// Arguments of Python's json.dumps.
struct JsonStyle {
  bool ascii = false;                 ///< ensure_ascii
  std::optional<std::string> indent;  ///< of one level; nothing: all on one line
  std::string between = ", ";         ///< separators[0]; "," with an indent where none is given
  std::string after_key = ": ";       ///< separators[1]
  bool sort_keys = false;
};

/// json.dumps(value). Brackets have the source of their list or dict, each character of a text its
/// own. Fault for what is no JSON, such as an undefined value.
[[nodiscard]] Text json_dumps(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace dstrain::chat
