#include "engine/chat/value.h"

#include <algorithm>
#include <numeric>

namespace dstrain::chat {

namespace {

int checked_nesting(int inner) {
  if (inner + 1 > kMaxNesting) throw Fault{"lists and dicts more than 100 deep"};
  return inner + 1;
}

}  // namespace

Value Value::undefined(std::string what) {
  return {Undefined{std::make_shared<const std::string>(std::move(what))}, {}};
}

Value Value::text(Text text, bool safe) {
  const Source source = text.empty() ? Source{} : text.runs().front().source;
  return {TextValue{std::make_shared<const Text>(std::move(text)), safe}, source};
}

Value Value::text(std::string bytes, Source source) {
  return {TextValue{std::make_shared<const Text>(std::move(bytes), source), false}, source};
}

Value Value::list(List list, Source source) {
  int inner = 0;
  for (const Value& item : list.items) inner = std::max(inner, item.nesting());
  list.nesting = checked_nesting(inner);
  return {std::make_shared<const List>(std::move(list)), source};
}

Value Value::dict(Dict dict, Source source) {
  return {std::make_shared<const Dict>(std::move(dict)), source};
}

Value Value::function(Function function) {
  return {std::make_shared<const Function>(std::move(function)), {}};
}

const Text* Value::as_text() const {
  const auto* value = std::get_if<TextValue>(&data_);
  return value == nullptr ? nullptr : value->text.get();
}

bool Value::is_safe_text() const {
  const auto* value = std::get_if<TextValue>(&data_);
  return value != nullptr && value->safe;
}

const List* Value::as_list() const {
  const auto* value = std::get_if<std::shared_ptr<const List>>(&data_);
  return value == nullptr ? nullptr : value->get();
}

const Dict* Value::as_dict() const {
  const auto* value = std::get_if<std::shared_ptr<const Dict>>(&data_);
  return value == nullptr ? nullptr : value->get();
}

Namespace* Value::as_space() const {
  const auto* value = std::get_if<Namespace*>(&data_);
  return value == nullptr ? nullptr : *value;
}

const Function* Value::as_function() const {
  const auto* value = std::get_if<std::shared_ptr<const Function>>(&data_);
  return value == nullptr ? nullptr : value->get();
}

const Loop* Value::as_loop() const {
  const auto* value = std::get_if<Loop*>(&data_);
  return value == nullptr ? nullptr : *value;
}

std::string Value::what() const {
  const auto* value = std::get_if<Undefined>(&data_);
  return value == nullptr || value->what == nullptr ? "a value" : *value->what;
}

int Value::nesting() const {
  if (const List* list = as_list()) return list->nesting;
  if (const Dict* dict = as_dict()) return dict->nesting();
  if (const Function* function = as_function()) return function->self.nesting();
  return 0;
}

Dict::Dict(std::vector<Entry> entries) : entries_(std::move(entries)) {
  order_.resize(entries_.size());
  std::iota(order_.begin(), order_.end(), 0U);
  const auto key = [this](std::uint32_t i) -> std::string_view { return entries_[i].key.bytes(); };
  std::ranges::stable_sort(order_, {}, key);
  std::vector<bool> dropped(entries_.size());
  bool repeated = false;
  for (std::size_t i = 0, first = 0; i < order_.size(); ++i) {
    if (key(order_[i]) != key(order_[first])) first = i;
    if (first == i) continue;
    repeated = dropped[order_[i]] = true;
    entries_[order_[first]].value = entries_[order_[i]].value;
  }
  if (repeated) {
    std::vector<Entry> kept;
    for (std::size_t i = 0; i < entries_.size(); ++i)
      if (!dropped[i]) kept.push_back(std::move(entries_[i]));
    *this = Dict(std::move(kept));
    return;
  }
  int inner = 0;
  for (const Entry& entry : entries_) inner = std::max(inner, entry.value.nesting());
  nesting_ = checked_nesting(inner);
}

const Value* Dict::find(std::string_view key) const {
  const auto bytes = [this](std::uint32_t i) -> std::string_view {
    return entries_[i].key.bytes();
  };
  const auto at = std::ranges::lower_bound(order_, key, {}, bytes);
  return at == order_.end() || bytes(*at) != key ? nullptr : &entries_[*at].value;
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [key, value] : members)
    if (key == name) return &value;
  return nullptr;
}

std::string_view type_name(const Value& value) {
  if (value.is_undefined()) return "undefined";
  if (value.is_none()) return "None";
  if (value.as_bool() != nullptr) return "bool";
  if (value.as_integer() != nullptr) return "int";
  if (value.as_real() != nullptr) return "float";
  if (value.as_text() != nullptr) return "text";
  if (value.as_dict() != nullptr) return "dict";
  if (value.as_space() != nullptr) return "namespace";
  if (value.as_loop() != nullptr) return "loop";
  if (value.as_function() != nullptr) return "function";
  switch (value.as_list()->kind) {
    case List::Kind::list:
      return "list";
    case List::Kind::tuple:
      return "tuple";
    case List::Kind::range:
      return "range";
    case List::Kind::view:
      return "view of a dict";
    case List::Kind::generator:
      return "generator";
  }
  return "list";
}

}  // namespace dstrain::chat
