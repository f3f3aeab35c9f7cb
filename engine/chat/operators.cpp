#include "engine/chat/operators.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "engine/chat/python.h"
#include "engine/chat/text_methods.h"

namespace dstrain::chat {

namespace {

[[noreturn]] void fail_overflow() { throw Fault{"a whole number beyond 64 bits"}; }

std::int64_t whole_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t power = 1;
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(power, base, &power)) fail_overflow();
    if (power == 0 || power == 1) break;
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  }
  return power;
}

Value whole(std::string_view symbol, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflows = false;
  if (symbol == "+") {
    overflows = __builtin_add_overflow(a, b, &result);
  } else if (symbol == "-") {
    overflows = __builtin_sub_overflow(a, b, &result);
  } else if (symbol == "*") {
    overflows = __builtin_mul_overflow(a, b, &result);
  } else if (symbol == "**") {
    if (b < 0) return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
    result = whole_power(a, b);
  } else {
    if (b == 0) throw Fault{"division by zero"};
    constexpr std::int64_t kExact = std::int64_t{1} << 53;
    if (symbol == "/") {
      if (a > kExact || a < -kExact || b > kExact || b < -kExact) fail_overflow();
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    }
    if (b == -1) {
      overflows = symbol == "//" && __builtin_sub_overflow(std::int64_t{0}, a, &result);
    } else {
      const bool down = a % b != 0 && (a < 0) != (b < 0);
      result = symbol == "//" ? a / b - (down ? 1 : 0) : a % b + (down ? b : 0);
    }
  }
  if (overflows) fail_overflow();
  return Value::integer(result);
}

Value real(std::string_view symbol, double a, double b) {
  if (symbol == "+") return Value::real(a + b);
  if (symbol == "-") return Value::real(a - b);
  if (symbol == "*") return Value::real(a * b);
  if (symbol == "**") {
    const double power = std::pow(a, b);
    if (!std::isfinite(power)) throw Fault{"a power beyond double"};
    return Value::real(power);
  }
  if (b == 0) throw Fault{"division by zero"};
  if (symbol == "/") return Value::real(a / b);
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
    quotient -= 1;
  } else if (rest == 0) {
    rest = std::copysign(0.0, b);
  }
  if (symbol == "%") return Value::real(rest);
  if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
  const double floored = std::floor(quotient);
  return Value::real(quotient - floored > 0.5 ? floored + 1 : floored);
}

Value joined_texts(const Value& left, const Value& right, Budget& budget) {
  if (left.is_safe_text() || right.is_safe_text())
    throw Fault{"adding to what the filter 'safe' gave is not supported; use ~"};
  budget.text(left.as_text()->size() + right.as_text()->size());
  Text text = *left.as_text();
  text.append(*right.as_text());
  return Value::text(std::move(text));
}

Value joined_lists(const List& left, const List& right, Budget& budget) {
  budget.step(left.items.size() + right.items.size());
  List list = left;
  list.items.insert(list.items.end(), right.items.begin(), right.items.end());
  return Value::list(std::move(list));
}

Value repeated(const Value& value, std::int64_t times, Budget& budget) {
  if (value.is_safe_text()) throw Fault{"repeating what the filter 'safe' gave is not supported"};
  const Text& text = *value.as_text();
  Text out;
  for (std::int64_t i = 0; i < times && !text.empty(); ++i) {
    budget.step();
    budget.text(text.size());
    out.append(text);
    if (out.size() > budget.limits().text) throw Fault{"the template makes too much text"};
  }
  return Value::text(std::move(out));
}

bool is_plain(const List* list) {
  return list != nullptr && (list->kind == List::Kind::list || list->kind == List::Kind::tuple);
}

}  // namespace

Value combined(std::string_view symbol, const Value& left, const Value& right, Budget& budget) {
  if (left.is_undefined()) fail_undefined(left);
  if (right.is_undefined()) fail_undefined(right);
  const auto a = whole_number(left), b = whole_number(right);
  if (a && b) return whole(symbol, *a, *b);
  const auto x = any_number(left), y = any_number(right);
  if (x && y) return real(symbol, *x, *y);
  const bool texts = left.as_text() != nullptr && right.as_text() != nullptr;
  if (symbol == "+" && texts) return joined_texts(left, right, budget);
  if (symbol == "+" && is_plain(left.as_list()) && is_plain(right.as_list()) &&
      left.as_list()->kind == right.as_list()->kind)
    return joined_lists(*left.as_list(), *right.as_list(), budget);
  if (symbol == "*" && left.as_text() != nullptr && b) return repeated(left, *b, budget);
  if (symbol == "*" && right.as_text() != nullptr && a) return repeated(right, *a, budget);
  throw Fault{fmt::format("{} {} {} is not supported", type_name(left), symbol, type_name(right))};
}

Value signed_value(std::string_view symbol, const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  const bool minus = symbol == "-";
  if (const auto number = whole_number(value))
    return minus ? whole("-", 0, *number) : Value::integer(*number);
  if (const double* number = value.as_real()) return Value::real(minus ? -*number : *number);
  throw Fault{fmt::format("{} before a {} is not supported", symbol, type_name(value))};
}

Value slice_of(const Value& value, const Value& begin, const Value& end, const Value& step,
               Budget& budget) {
  if (value.is_undefined()) fail_undefined(value);
  const auto bound = [](const Value& at) -> std::optional<std::int64_t> {
    if (at.is_none()) return std::nullopt;
    const auto number = whole_number(at);
    if (!number) throw Fault{fmt::format("a slice wants whole numbers, not {}", type_name(at))};
    return number;
  };
  const auto from = bound(begin), to = bound(end), by = bound(step);
  if (const Text* text = value.as_text())
    return Value::text(sliced(*text, from, to, by, budget), value.is_safe_text());
  const List* list = value.as_list();
  if (list == nullptr || list->kind == List::Kind::view || list->kind == List::Kind::generator)
    throw Fault{fmt::format("a slice of a {} is not supported", type_name(value))};
  const auto range = slice_range(from, to, by, std::ssize(list->items));
  budget.step(static_cast<std::uint64_t>(range.count));
  List part;
  part.kind = list->kind;
  for (std::int64_t i = 0, at = range.begin; i < range.count; ++i, at += range.step)
    part.items.push_back(list->items[static_cast<std::size_t>(at)]);
  return Value::list(std::move(part), value.source());
}

}  // namespace dstrain::chat
