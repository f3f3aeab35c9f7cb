#include "engine/weights/pickle_array.h"

#include <algorithm>
#include <array>

namespace dstrain {
namespace {

using Kind = PickleValue::Kind;

bool is_called(const PickleValue& value, std::string_view name) {
  return value.is_opaque(name) && value.arguments != nullptr;
}

/// Texts of Python 2 are bytes.
bool is_word(const PickleValue& value, std::string_view word) {
  return (value.is(Kind::text) || value.is(Kind::bytes)) && value.text == word;
}

bool is_u1(const PickleValue& type) {
  if (!is_called(type, "numpy.dtype") || type.arguments->items.empty()) return false;
  const PickleValue& name = *type.arguments->items[0];
  return is_word(name, "u1") || is_word(name, "|u1");
}

}  // namespace

std::optional<PickleArray> byte_array(const PickleValue& value) {
  // Before and since numpy 2.
  constexpr std::array kNames = {"numpy.core.multiarray._reconstruct",
                                 "numpy._core.multiarray._reconstruct"};
  constexpr std::size_t kStateItems = 5;  // version, shape, type, order of Fortran, bytes
  const bool made = std::ranges::any_of(kNames, [&](auto name) { return is_called(value, name); });
  if (!made || value.state == nullptr || !value.state->is(Kind::tuple) ||
      value.state->items.size() != kStateItems)
    return std::nullopt;
  const auto& state = value.state->items;
  const PickleValue &shape = *state[1], &order = *state[3], &bytes = *state[4];
  if (!shape.is(Kind::tuple) || !is_u1(*state[2]) || order.integer != 0 ||
      !(order.is(Kind::boolean) || order.is(Kind::integer)) || !bytes.is(Kind::bytes))
    return std::nullopt;
  PickleArray array{.shape = {}, .bytes = bytes.text};
  const auto max = static_cast<std::int64_t>(array.bytes.size());
  std::int64_t elements = 1;
  for (const PickleValue* size : shape.items) {
    if (!size->is(Kind::integer) || size->integer < 0) return std::nullopt;
    if (size->integer > 0 && elements > max / size->integer) return std::nullopt;
    elements *= size->integer;
    array.shape.push_back(size->integer);
  }
  if (elements != max) return std::nullopt;
  return array;
}

}  // namespace dstrain
