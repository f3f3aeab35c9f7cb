#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/budget.h"
#include "engine/chat/value.h"

namespace dstrain::chat {

/// What a call, filter or test was given.
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;

  /// The value at `index`, or the one named `name`; null where neither is given.
  [[nodiscard]] const Value* find(std::size_t index, std::string_view name) const;
  /// Fault unless no more than `count` values are given, and names among `names`.
  void check(std::string_view what, std::size_t count,
             std::initializer_list<std::string_view> names = {}) const;
};

[[nodiscard]] bool is_filter(std::string_view name);
/// value | name(arguments)
[[nodiscard]] Value apply_filter(std::string_view name, const Value& value,
                                 const Arguments& arguments, Budget& budget);

}  // namespace dstrain::chat
