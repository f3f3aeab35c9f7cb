#include "engine/chat/tests.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/chat/python.h"

namespace dstrain::chat {

namespace {

constexpr std::string_view kTests[] = {
    "boolean",  "callable", "defined",  "divisibleby", "eq",          "equalto",  "even",
    "false",    "float",    "ge",       "gt",          "greaterthan", "in",       "integer",
    "iterable", "le",       "lessthan", "lt",          "mapping",     "ne",       "none",
    "number",   "odd",      "sequence", "string",      "true",        "undefined"};

/// The remainder as Python has it: with the sign of the divisor.
bool divides(const Value& value, const Value& by, std::int64_t remainder) {
  const auto number = whole_number(value);
  const auto divisor = whole_number(by);
  if (!number || !divisor || *divisor == 0)
    throw Fault{fmt::format("{} % {} is not supported", type_name(value), type_name(by))};
  if (*divisor == -1) return remainder == 0;
  const std::int64_t rest = *number % *divisor;
  return (rest != 0 && (rest < 0) != (*divisor < 0) ? rest + *divisor : rest) == remainder;
}

bool is_sequence(const Value& value) {
  const List* list = value.as_list();
  return value.is_undefined() || value.as_text() != nullptr || value.as_dict() != nullptr ||
         (list != nullptr && list->kind != List::Kind::view && list->kind != List::Kind::generator);
}

}  // namespace

bool is_test(std::string_view name) { return std::ranges::find(kTests, name) != std::end(kTests); }

bool apply_test(std::string_view name, const Value& value, const Arguments& arguments,
                Budget& budget) {
  budget.step();
  static constexpr std::string_view kWithOne[] = {"divisibleby", "eq",          "equalto", "ge",
                                                  "gt",          "greaterthan", "in",      "le",
                                                  "lessthan",    "lt",          "ne"};
  const bool one = std::ranges::find(kWithOne, name) != std::end(kWithOne);
  arguments.check(fmt::format("the test '{}'", name), one ? 1 : 0);
  if (one) {
    if (arguments.values.empty()) throw Fault{fmt::format("the test '{}' wants a value", name)};
    const Value& other = arguments.values[0];
    if (name == "eq" || name == "equalto") return equal(value, other, budget);
    if (name == "ne") return !equal(value, other, budget);
    if (name == "lt" || name == "lessthan") return less(value, other, budget);
    if (name == "gt" || name == "greaterthan") return less(other, value, budget);
    if (name == "le") return less_or_equal(value, other, budget);
    if (name == "ge") return less_or_equal(other, value, budget);
    if (name == "in") return contains(other, value, budget);
    return divides(value, other, 0);
  }
  const bool* boolean = value.as_bool();
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "boolean") return boolean != nullptr;
  if (name == "true") return boolean != nullptr && *boolean;
  if (name == "false") return boolean != nullptr && !*boolean;
  if (name == "integer") return value.as_integer() != nullptr;
  if (name == "float") return value.as_real() != nullptr;
  if (name == "number") return any_number(value).has_value();
  if (name == "string") return value.as_text() != nullptr;
  if (name == "mapping") return value.as_dict() != nullptr;
  if (name == "iterable")
    return value.is_undefined() || value.as_text() != nullptr || value.as_dict() != nullptr ||
           value.as_list() != nullptr || value.as_loop() != nullptr;
  if (name == "sequence") return is_sequence(value);
  if (name == "callable")
    return value.is_undefined() || value.as_function() != nullptr || value.as_loop() != nullptr;
  return divides(value, Value::integer(2), name == "odd" ? 1 : 0);
}

}  // namespace dstrain::chat
