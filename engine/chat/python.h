#pragma once

#include <compare>
#include <optional>

#include "engine/chat/budget.h"
#include "engine/chat/value.h"

namespace dstrain::chat {

/// bool(value)
[[nodiscard]] bool truth(const Value& value);
/// left == right
[[nodiscard]] bool equal(const Value& left, const Value& right, Budget& budget);
/// Whether left < right, of numbers, texts, lists and tuples. Fault where Python refuses it.
[[nodiscard]] bool less(const Value& left, const Value& right, Budget& budget);
/// Fault for a list or dict, which cannot be the key of a dict.
void check_key(const Value& value);
/// left <= right, which nan makes false.
[[nodiscard]] bool less_or_equal(const Value& left, const Value& right, Budget& budget);
/// item in container
[[nodiscard]] bool contains(const Value& container, const Value& item, Budget& budget);

/// str(value), which is what a template prints. Fault for what prints as an address in Python.
[[nodiscard]] Text text_of(const Value& value, Budget& budget);

/// What a loop over the value sees: items, characters of a text, keys of a dict. Fault for the
/// rest, and for a generator that was read before.
[[nodiscard]] std::vector<Value> items_of(const Value& value, Budget& budget);
/// len(value); nothing where it has none.
[[nodiscard]] std::optional<std::size_t> length_of(const Value& value);

/// The number of a bool or int; nothing of another value.
[[nodiscard]] std::optional<std::int64_t> whole_number(const Value& value);
/// The number of a bool, int or float.
[[nodiscard]] std::optional<double> any_number(const Value& value);

/// Name of the missing value: what Python's UndefinedError says.
[[noreturn]] void fail_undefined(const Value& value);

}  // namespace dstrain::chat
