#include "engine/chat/filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/base/printable.h"
#include "engine/chat/json_writer.h"
#include "engine/chat/members.h"
#include "engine/chat/python.h"
#include "engine/chat/tests.h"
#include "engine/chat/text_methods.h"

namespace dstrain::chat {

const Value* Arguments::find(std::size_t index, std::string_view name) const {
  if (index < values.size()) return &values[index];
  for (const auto& [key, value] : named)
    if (!name.empty() && key == name) return &value;
  return nullptr;
}

void Arguments::check(std::string_view what, std::size_t count,
                      std::initializer_list<std::string_view> names) const {
  if (values.size() > count)
    throw Fault{fmt::format("{} takes at most {} arguments, not {}", what, count, values.size())};
  for (const auto& [key, value] : named) {
    const auto* known = std::ranges::find(names, key);
    if (known == names.end())
      throw Fault{fmt::format("{} knows no argument '{}'", what, shown(key))};
    if (static_cast<std::size_t>(known - names.begin()) < values.size())
      throw Fault{fmt::format("{}: the argument '{}' is given twice", what, shown(key))};
  }
}

namespace {

Value with_text(const Value& value, const Text& text) {
  return Value::text(text, value.is_safe_text());
}

Value filter_trim(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check("trim", 1, {"chars"});
  const Value* set = arguments.find(0, "chars");
  if (set != nullptr && !set->is_none() && set->as_text() == nullptr)
    throw Fault{"trim wants a text of characters"};
  const Text text = text_of(value, budget);
  return with_text(value, stripped(text, set == nullptr ? nullptr : set->as_text(), true, true));
}

Value filter_length(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check("length", 0);
  if (const Text* text = value.as_text()) budget.text(text->size());
  const auto length = length_of(value);
  if (!length) throw Fault{fmt::format("a {} has no length", type_name(value))};
  return Value::integer(static_cast<std::int64_t>(*length));
}

bool flag(const Value* value, bool preset) { return value == nullptr ? preset : truth(*value); }

Value filter_tojson(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check("tojson", 4, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = flag(arguments.find(0, "ensure_ascii"), false);
  if (const Value* indent = arguments.find(1, "indent"); indent != nullptr && !indent->is_none()) {
    const auto spaces = whole_number(*indent);
    if (!spaces && indent->as_text() == nullptr)
      throw Fault{fmt::format("tojson: the indent is a {}", type_name(*indent))};
    if (spaces && *spaces > 100) throw Fault{"tojson: an indent of more than 100"};
    style.indent =
        spaces ? std::string(static_cast<std::size_t>(std::max<std::int64_t>(*spaces, 0)), ' ')
               : indent->as_text()->bytes();
    style.between = ",";
  }
  if (const Value* both = arguments.find(2, "separators"); both != nullptr && !both->is_none()) {
    const List* list = both->as_list();
    if (list == nullptr || list->items.size() != 2 || list->items[0].as_text() == nullptr ||
        list->items[1].as_text() == nullptr)
      throw Fault{"tojson: separators are two texts"};
    style.between = list->items[0].as_text()->bytes();
    style.after_key = list->items[1].as_text()->bytes();
  }
  style.sort_keys = flag(arguments.find(3, "sort_keys"), false);
  return Value::text(json_dumps(value, style, budget));
}

std::vector<std::string> path_of(const Value& attribute) {
  if (const auto index = whole_number(attribute)) return {fmt::format("{}", *index)};
  if (attribute.as_text() == nullptr) throw Fault{"an attribute is a text"};
  std::vector<std::string> path(1);
  for (const char c : attribute.as_text()->bytes()) {
    if (c == '.') {
      path.emplace_back();
    } else {
      path.back().push_back(c);
    }
  }
  return path;
}

/// What `attribute` of a filter finds: a path of names and indexes.
Value attribute_of(Value value, const std::vector<std::string>& path, Budget& budget) {
  for (const std::string& part : path) {
    const bool index = !part.empty() && part.size() < 10 &&
                       std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    value = item_of(value, index ? Value::integer(std::stoll(part)) : Value::text(part), budget);
  }
  return value;
}

Value filter_join(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check("join", 2, {"d", "attribute"});
  const Value* between = arguments.find(0, "d");
  const Value* attribute = arguments.find(1, "attribute");
  const Text separator = between == nullptr ? Text() : text_of(*between, budget);
  std::vector<std::string> path;
  if (attribute != nullptr && !attribute->is_none()) path = path_of(*attribute);
  Text out;
  bool first = true;
  for (const Value& item : items_of(value, budget)) {
    if (!std::exchange(first, false)) {
      budget.text(separator.size());
      out.append(separator);
    }
    out.append(text_of(path.empty() ? item : attribute_of(item, path, budget), budget));
    if (out.size() > budget.limits().text) throw Fault{"the template makes too much text"};
  }
  return Value::text(std::move(out));
}

Value generator(std::vector<Value> items) {
  return Value::list({.items = std::move(items), .kind = List::Kind::generator});
}

Value filter_items(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check("items", 0);
  if (value.is_undefined()) return generator({});
  if (value.as_dict() == nullptr)
    throw Fault{fmt::format("items wants a dict, not {}", type_name(value))};
  return Value::list(pairs_of(*value.as_dict(), List::Kind::generator, budget));
}

/// select, reject, selectattr and rejectattr.
Value choose(std::string_view name, const Value& value, const Arguments& arguments,
             Budget& budget) {
  const bool by_attribute = name.ends_with("attr");
  const bool keeps = name.starts_with("select");
  std::size_t at = 0;
  std::vector<std::string> path;
  if (by_attribute) {
    if (arguments.values.empty()) throw Fault{fmt::format("{} wants an attribute", name)};
    path = path_of(arguments.values[at++]);
  }
  std::string test;
  Arguments rest;
  if (at < arguments.values.size()) {
    const Text* given = arguments.values[at++].as_text();
    if (given == nullptr || !is_test(given->bytes()))
      throw Fault{fmt::format("{}: this test is not supported", name)};
    test = given->bytes();
    rest.values.assign(arguments.values.begin() + static_cast<std::ptrdiff_t>(at),
                       arguments.values.end());
    rest.named = arguments.named;
  }
  std::vector<Value> kept;
  for (const Value& item : items_of(value, budget)) {
    const Value asked = by_attribute ? attribute_of(item, path, budget) : item;
    const bool holds = test.empty() ? truth(asked) : apply_test(test, asked, rest, budget);
    if (holds == keeps) kept.push_back(item);
  }
  return generator(std::move(kept));
}

Value filter_map(const Value& value, const Arguments& arguments, Budget& budget) {
  std::vector<Value> out;
  if (arguments.values.empty()) {
    arguments.check("map", 0, {"attribute", "default"});
    const Value* attribute = arguments.find(0, "attribute");
    if (attribute == nullptr) throw Fault{"map wants the name of a filter"};
    const Value* preset = arguments.find(1, "default");
    const auto path = path_of(*attribute);
    for (const Value& item : items_of(value, budget)) {
      Value found = attribute_of(item, path, budget);
      if (found.is_undefined() && preset != nullptr && !preset->is_none()) found = *preset;
      out.push_back(std::move(found));
    }
    return generator(std::move(out));
  }
  const Text* name = arguments.values[0].as_text();
  if (name == nullptr || !is_filter(name->bytes()) || name->bytes() == "map")
    throw Fault{"map: this filter is not supported"};
  Arguments rest;
  rest.values.assign(arguments.values.begin() + 1, arguments.values.end());
  rest.named = arguments.named;
  for (const Value& item : items_of(value, budget))
    out.push_back(apply_filter(name->bytes(), item, rest, budget));
  return generator(std::move(out));
}

Value filter_default(const Value& value, const Arguments& arguments) {
  arguments.check("default", 2, {"default_value", "boolean"});
  const Value* preset = arguments.find(0, "default_value");
  const bool by_truth = flag(arguments.find(1, "boolean"), false);
  if (!value.is_undefined() && !(by_truth && !truth(value))) return value;
  return preset == nullptr ? Value::text(std::string()) : *preset;
}

Value without_case(const Value& value, Budget& budget) {
  const Text* text = value.as_text();
  return text == nullptr ? value : Value::text(in_case(*text, Case::lower, budget));
}

/// Stable, and with bounded work: `budget` ends the comparisons.
void sort_by(std::vector<std::pair<Value, Value>>& keyed, bool down, Budget& budget) {
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return down ? less(b.first, a.first, budget) : less(a.first, b.first, budget);
  });
}

Value filter_dictsort(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check("dictsort", 3, {"case_sensitive", "by", "reverse"});
  if (value.is_undefined()) fail_undefined(value);
  if (value.as_dict() == nullptr)
    throw Fault{fmt::format("dictsort wants a dict, not {}", type_name(value))};
  const bool case_sensitive = flag(arguments.find(0, "case_sensitive"), false);
  const Value* by = arguments.find(1, "by");
  const std::string which = by == nullptr ? "key" : text_of(*by, budget).bytes();
  if (which != "key" && which != "value") throw Fault{"dictsort sorts by 'key' or 'value'"};
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& pair : pairs_of(*value.as_dict(), List::Kind::list, budget).items) {
    const Value& key = pair.as_list()->items[which == "key" ? 0 : 1];
    keyed.emplace_back(case_sensitive ? key : without_case(key, budget), pair);
  }
  sort_by(keyed, flag(arguments.find(2, "reverse"), false), budget);
  List list;
  for (const auto& [key, pair] : keyed) list.items.push_back(pair);
  return Value::list(std::move(list));
}

Value filter_reverse(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check("reverse", 0);
  if (const Text* text = value.as_text())
    return Value::text(sliced(*text, std::nullopt, std::nullopt, -1, budget));
  if (value.as_list() == nullptr || value.as_list()->kind == List::Kind::generator)
    throw Fault{fmt::format("reverse of a {} is not supported", type_name(value))};
  std::vector<Value> items = items_of(value, budget);
  std::ranges::reverse(items);
  return generator(std::move(items));
}

Value filter_first_or_last(std::string_view name, const Value& value, const Arguments& arguments,
                           Budget& budget) {
  arguments.check(name, 0);
  const bool first = name == "first";
  if (!first && value.as_list() != nullptr && value.as_list()->kind == List::Kind::generator)
    throw Fault{"a generator has no last item"};
  const std::vector<Value> items = items_of(value, budget);
  if (items.empty()) return Value::undefined(fmt::format("the {} item of nothing", name));
  return first ? items.front() : items.back();
}

Value filter_replace(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check("replace", 3, {"old", "new", "count"});
  const Value* from = arguments.find(0, "old");
  const Value* to = arguments.find(1, "new");
  const Value* count = arguments.find(2, "count");
  if (from == nullptr || to == nullptr) throw Fault{"replace wants two texts"};
  std::int64_t times = -1;
  if (count != nullptr && !count->is_none()) {
    if (!whole_number(*count)) throw Fault{"replace: the count is no whole number"};
    times = *whole_number(*count);
  }
  return Value::text(replaced(text_of(value, budget), text_of(*from, budget), text_of(*to, budget),
                              times, budget));
}

Value filter_abs(const Value& value, const Arguments& arguments) {
  arguments.check("abs", 0);
  if (const double* real = value.as_real()) return Value::real(std::fabs(*real));
  const auto whole = whole_number(value);
  if (!whole || *whole == INT64_MIN)
    throw Fault{fmt::format("abs of a {} is not supported", type_name(value))};
  return Value::integer(*whole < 0 ? -*whole : *whole);
}

constexpr std::string_view kFilters[] = {"abs",        "capitalize", "count",   "d",    "default",
                                         "dictsort",   "first",      "items",   "join", "last",
                                         "length",     "list",       "lower",   "map",  "reject",
                                         "rejectattr", "replace",    "reverse", "safe", "select",
                                         "selectattr", "string",     "tojson",  "trim", "upper"};

}  // namespace

bool is_filter(std::string_view name) {
  return std::ranges::find(kFilters, name) != std::end(kFilters);
}

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments,
                   Budget& budget) {
  budget.step();
  if (name == "trim") return filter_trim(value, arguments, budget);
  if (name == "length" || name == "count") return filter_length(value, arguments, budget);
  if (name == "tojson") return filter_tojson(value, arguments, budget);
  if (name == "join") return filter_join(value, arguments, budget);
  if (name == "items") return filter_items(value, arguments, budget);
  if (name == "map") return filter_map(value, arguments, budget);
  if (name == "default" || name == "d") return filter_default(value, arguments);
  if (name == "dictsort") return filter_dictsort(value, arguments, budget);
  if (name == "replace") return filter_replace(value, arguments, budget);
  if (name == "reverse") return filter_reverse(value, arguments, budget);
  if (name == "abs") return filter_abs(value, arguments);
  if (name == "first" || name == "last")
    return filter_first_or_last(name, value, arguments, budget);
  if (name.starts_with("select") || name.starts_with("reject"))
    return choose(name, value, arguments, budget);
  arguments.check(name, 0);
  if (name == "list") return Value::list({.items = items_of(value, budget)});
  const Text text = text_of(value, budget);
  if (name == "upper") return with_text(value, in_case(text, Case::upper, budget));
  if (name == "lower") return with_text(value, in_case(text, Case::lower, budget));
  if (name == "capitalize") return with_text(value, in_case(text, Case::capital, budget));
  if (name == "safe") return Value::text(text, true);
  return with_text(value, text);  // string
}

}  // namespace dstrain::chat
