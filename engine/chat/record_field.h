#pragma once

#include <string_view>

#include "engine/chat/value.h"

namespace dstrain::chat {

/// The field `name` of a record or message; null where it has none, or null there.
[[nodiscard]] inline const Value* field(const Value& record, std::string_view name) {
  const Dict* dict = record.as_dict();
  const Value* found = dict == nullptr ? nullptr : dict->find(name);
  return found == nullptr || found->is_none() ? nullptr : found;
}

}  // namespace dstrain::chat
