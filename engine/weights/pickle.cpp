#include "engine/weights/pickle.h"

#include <utility>

#include "engine/weights/pickle_machine.h"

namespace dstrain {

bool PickleTensor::contiguous() const {
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != stride) return false;
    stride *= shape[i];
  }
  return true;
}

const PickleValue* PickleValue::find(std::string_view key) const {
  if (kind == Kind::opaque) {
    // Objects with slots have a pair: their __dict__ and the slots.
    if (state == nullptr) return nullptr;
    if (state->kind == Kind::dict) return state->find(key);
    if (state->kind != Kind::tuple) return nullptr;
    for (const PickleValue* part : state->items) {
      const PickleValue* found = part->kind == Kind::dict ? part->find(key) : nullptr;
      if (found != nullptr) return found;
    }
    return nullptr;
  }
  if (kind != Kind::dict) return nullptr;
  for (std::size_t i = items.size(); i >= 2; i -= 2) {
    const PickleValue& name = *items[i - 2];
    if ((name.is(Kind::text) || name.is(Kind::bytes)) && name.text == key) return items[i - 1];
  }
  return nullptr;
}

const char* kind_text(PickleValue::Kind kind) {
  switch (kind) {
    using enum PickleValue::Kind;
    case none:
      return "None";
    case boolean:
      return "a truth value";
    case integer:
      return "a whole number";
    case real:
      return "a number";
    case text:
      return "a text";
    case bytes:
      return "bytes";
    case list:
      return "a list";
    case tuple:
      return "a tuple";
    case set:
      return "a set";
    case dict:
      return "a dict";
    case storage:
      return "a storage";
    case tensor:
      return "a tensor";
    case opaque:
      return "an object";
  }
  return "";
}

Pickle::Pickle(std::span<const std::byte> program, std::string where, const PickleLimits& limits) {
  PickleMachine machine(program, where, limits, values_);
  root_ = machine.run();
  size_ = machine.size();
}

}  // namespace dstrain
