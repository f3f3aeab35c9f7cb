#include "engine/chat/python.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/chat/characters.h"

namespace dstrain::chat {

namespace {

bool is_number(const Value& value) { return any_number(value).has_value(); }

void write_plain(Text& out, const Value& value, bool quoted, Budget& budget);

void write_list(Text& out, const List& list, Source source, Budget& budget) {
  if (list.kind == List::Kind::view || list.kind == List::Kind::generator)
    throw Fault{"the text of a view or generator is not supported; use the filter list"};
  if (list.kind == List::Kind::range) throw Fault{"the text of a range is not supported"};
  const bool tuple = list.kind == List::Kind::tuple;
  out.append(tuple ? "(" : "[", source);
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ", source);
    write_plain(out, list.items[i], true, budget);
  }
  if (tuple && list.items.size() == 1) out.append(",", source);
  out.append(tuple ? ")" : "]", source);
}

void write_plain(Text& out, const Value& value, bool quoted, Budget& budget) {
  budget.step();
  const std::size_t before = out.size();
  const Source source = value.source();
  if (const Text* text = value.as_text()) {
    if (quoted && value.is_safe_text())
      throw Fault{"what the filter 'safe' gave is not supported in the text of a list or dict"};
    if (!quoted) {
      out.append(*text);
    } else {
      // Escapes keep the source of their character; the choice of the quotes needs the whole text.
      const bool plain = std::ranges::all_of(
          text->bytes(), [](char c) { return c >= ' ' && c < 127 && c != '\'' && c != '\\'; });
      if (plain) {
        out.append("'", source);
        out.append(*text);
        out.append("'", source);
      } else {
        out.append(python_quoted(text->bytes()), source);
      }
    }
  } else if (value.is_undefined()) {
    out.append(quoted ? "Undefined" : "", source);
  } else if (value.is_none()) {
    out.append("None", source);
  } else if (const bool* boolean = value.as_bool()) {
    out.append(*boolean ? "True" : "False", source);
  } else if (const std::int64_t* integer = value.as_integer()) {
    out.append(fmt::format("{}", *integer), source);
  } else if (const double* real = value.as_real()) {
    out.append(python_float(*real), source);
  } else if (const List* list = value.as_list()) {
    write_list(out, *list, source, budget);
  } else if (const Dict* dict = value.as_dict()) {
    out.append("{", source);
    for (std::size_t i = 0; i < dict->entries().size(); ++i) {
      if (i > 0) out.append(", ", source);
      const auto& [key, inner] = dict->entries()[i];
      write_plain(out, Value::text(key), true, budget);
      out.append(": ", source);
      write_plain(out, inner, true, budget);
    }
    out.append("}", source);
  } else {
    throw Fault{fmt::format("the text of a {} is not supported", type_name(value))};
  }
  budget.text(out.size() - before);
  if (out.size() > budget.limits().text) throw Fault{"the template makes too much text"};
}

}  // namespace

void fail_undefined(const Value& value) {
  throw Fault{fmt::format("{} is undefined", value.what())};
}

std::optional<std::int64_t> whole_number(const Value& value) {
  if (const bool* boolean = value.as_bool()) return *boolean ? 1 : 0;
  if (const std::int64_t* integer = value.as_integer()) return *integer;
  return std::nullopt;
}

std::optional<double> any_number(const Value& value) {
  if (const auto whole = whole_number(value)) return static_cast<double>(*whole);
  if (const double* real = value.as_real()) return *real;
  return std::nullopt;
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = any_number(value)) return *number != 0;
  if (const List* list = value.as_list())
    return list->kind == List::Kind::generator || !list->items.empty();
  if (const auto length = length_of(value)) return *length > 0;
  return true;
}

bool equal(const Value& left, const Value& right, Budget& budget) {
  budget.step();
  if (const auto a = whole_number(left), b = whole_number(right); a && b) return *a == *b;
  if (is_number(left) && is_number(right)) return *any_number(left) == *any_number(right);
  if (const Text* a = left.as_text(), *b = right.as_text(); a != nullptr && b != nullptr)
    return a->bytes() == b->bytes();
  if (const List* a = left.as_list(), *b = right.as_list(); a != nullptr && b != nullptr) {
    if (a == b) return true;
    if (a->kind == List::Kind::view || b->kind == List::Kind::view)
      throw Fault{"comparing views of dicts is not supported"};
    if (a->kind != b->kind || a->kind == List::Kind::generator) return false;
    if (a->items.size() != b->items.size()) return false;
    for (std::size_t i = 0; i < a->items.size(); ++i)
      if (!equal(a->items[i], b->items[i], budget)) return false;
    return true;
  }
  if (const Dict* a = left.as_dict(), *b = right.as_dict(); a != nullptr && b != nullptr) {
    if (a->entries().size() != b->entries().size()) return false;
    for (const auto& [key, value] : a->entries()) {
      const Value* other = b->find(key.bytes());
      if (other == nullptr || !equal(value, *other, budget)) return false;
    }
    return true;
  }
  if (left.is_undefined() || right.is_undefined())
    return left.is_undefined() == right.is_undefined();
  if (left.is_none() || right.is_none()) return left.is_none() == right.is_none();
  if (left.as_space() != nullptr) return left.as_space() == right.as_space();
  if (left.as_function() != nullptr && right.as_function() != nullptr)
    throw Fault{"comparing functions is not supported"};
  return false;
}

bool less(const Value& left, const Value& right, Budget& budget) {
  budget.step();
  if (const auto a = whole_number(left), b = whole_number(right); a && b) return *a < *b;
  if (is_number(left) && is_number(right)) return *any_number(left) < *any_number(right);
  if (const Text* a = left.as_text(), *b = right.as_text(); a != nullptr && b != nullptr)
    return a->bytes() < b->bytes();
  const List *a = left.as_list(), *b = right.as_list();
  const bool ordered = a != nullptr && b != nullptr && a->kind == b->kind &&
                       (a->kind == List::Kind::list || a->kind == List::Kind::tuple);
  if (!ordered) {
    if (left.is_undefined()) fail_undefined(left);
    if (right.is_undefined()) fail_undefined(right);
    throw Fault{fmt::format("{} and {} have no order", type_name(left), type_name(right))};
  }
  for (std::size_t i = 0; i < a->items.size() && i < b->items.size(); ++i)
    if (!equal(a->items[i], b->items[i], budget)) return less(a->items[i], b->items[i], budget);
  return a->items.size() < b->items.size();
}

void check_key(const Value& value) {
  const List* list = value.as_list();
  if (value.as_dict() != nullptr || (list != nullptr && list->kind == List::Kind::list))
    throw Fault{fmt::format("a {} cannot be a key", type_name(value))};
}

bool less_or_equal(const Value& left, const Value& right, Budget& budget) {
  return less(left, right, budget) || equal(left, right, budget);
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  budget.step();
  if (const Text* text = container.as_text()) {
    const Text* part = item.as_text();
    if (part == nullptr && item.is_undefined()) fail_undefined(item);
    if (part == nullptr)
      throw Fault{fmt::format("'in' a text wants a text, not {}", type_name(item))};
    budget.text(text->size());
    return text->bytes().find(part->bytes()) != std::string::npos;
  }
  if (const Dict* dict = container.as_dict()) {
    if (const Text* key = item.as_text()) return dict->find(key->bytes()) != nullptr;
    check_key(item);
    return false;
  }
  if (container.as_list() == nullptr && !container.is_undefined())
    throw Fault{fmt::format("'in' a {} is not possible", type_name(container))};
  const List* list = container.as_list();
  const bool nested = item.as_list() != nullptr || item.as_dict() != nullptr;
  if (list != nullptr && list->kind == List::Kind::view && nested)
    throw Fault{fmt::format("a {} in a view of a dict is not supported", type_name(item))};
  return std::ranges::any_of(items_of(container, budget), [&](const Value& candidate) {
    return equal(candidate, item, budget);
  });
}

Text text_of(const Value& value, Budget& budget) {
  Text out;
  write_plain(out, value, false, budget);
  return out;
}

std::vector<Value> items_of(const Value& value, Budget& budget) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (const List* list = value.as_list()) {
    if (list->kind == List::Kind::generator && std::exchange(list->read, true))
      throw Fault{"a generator is read twice; the filter list makes a list of it"};
    budget.step(list->items.size());
    return list->items;
  }
  if (const Dict* dict = value.as_dict()) {
    budget.step(dict->entries().size());
    for (const auto& entry : dict->entries()) items.push_back(Value::text(entry.key));
    return items;
  }
  if (const Text* text = value.as_text()) {
    for (std::size_t at = 0; at < text->size();) {
      budget.step();
      const std::size_t begin = at;
      static_cast<void>(next_character(text->bytes(), at));
      items.push_back(Value::text(text->part(begin, at)));
    }
    return items;
  }
  throw Fault{fmt::format("a {} has no items", type_name(value))};
}

std::optional<std::size_t> length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const Text* text = value.as_text()) return count_characters(text->bytes());
  if (const Dict* dict = value.as_dict()) return dict->entries().size();
  if (const List* list = value.as_list())
    return list->kind == List::Kind::generator ? std::nullopt : std::optional(list->items.size());
  if (const Loop* loop = value.as_loop()) return loop->items->size();
  return std::nullopt;
}

}  // namespace dstrain::chat
