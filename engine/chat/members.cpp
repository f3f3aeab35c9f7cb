#include "engine/chat/members.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "engine/base/printable.h"
#include "engine/chat/characters.h"
#include "engine/chat/python.h"
#include "engine/chat/text_methods.h"

namespace dstrain::chat {

namespace {

using Names = std::span<const std::string_view>;

constexpr std::string_view kTextMethods[] = {
    "split",    "rsplit",       "strip",        "lstrip", "rstrip",     "startswith",
    "endswith", "replace",      "upper",        "lower",  "capitalize", "find",
    "count",    "removeprefix", "removesuffix", "join",   "splitlines"};
constexpr std::string_view kOtherTextMethods[] = {
    "casefold",     "center",     "encode",    "expandtabs",  "format",    "format_map",
    "index",        "isalnum",    "isalpha",   "isascii",     "isdecimal", "isdigit",
    "isidentifier", "islower",    "isnumeric", "isprintable", "isspace",   "istitle",
    "isupper",      "ljust",      "maketrans", "partition",   "rfind",     "rindex",
    "rjust",        "rpartition", "swapcase",  "title",       "translate", "zfill"};
constexpr std::string_view kDictMethods[] = {"get", "items", "keys", "values"};
constexpr std::string_view kOtherDictMethods[] = {"clear",   "copy",       "fromkeys", "pop",
                                                  "popitem", "setdefault", "update"};
constexpr std::string_view kListMethods[] = {"append", "clear",  "copy", "count",  "extend",
                                             "index",  "insert", "pop",  "remove", "reverse",
                                             "sort",   "start",  "stop", "step"};
constexpr std::string_view kNumberMembers[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};

bool has(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

Value method(const Value& of, std::string_view name) {
  return Value::function({.name = std::string(name), .self = of, .macro = nullptr, .method = true});
}

/// Attribute of the Python object; nothing where it has none.
std::optional<Value> attribute(const Value& value, std::string_view name);

std::optional<Value> loop_member(const Loop& loop, std::string_view name) {
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto length = static_cast<std::int64_t>(loop.items->size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == length);
  if (name == "length") return Value::integer(length);
  if (name == "depth") return Value::integer(loop.depth);
  if (name == "depth0") return Value::integer(loop.depth - 1);
  if (name == "previtem")
    return index == 0 ? Value::undefined("loop.previtem") : (*loop.items)[loop.index - 1];
  if (name == "nextitem")
    return index + 1 == length ? Value::undefined("loop.nextitem") : (*loop.items)[loop.index + 1];
  if (name == "cycle" || name == "changed")
    throw Fault{fmt::format("loop.{} is not supported", name)};
  return std::nullopt;
}

std::optional<Value> attribute(const Value& value, std::string_view name) {
  const auto refuse = [&](Names names) {
    if (has(names, name))
      throw Fault{fmt::format("'{}' of a {} is not supported", name, type_name(value))};
  };
  if (name.starts_with("_") || value.as_function() != nullptr)
    throw Fault{fmt::format("'{}' of a {} is not supported", shown(name), type_name(value))};
  if (value.as_text() != nullptr) {
    if (has(kTextMethods, name)) return method(value, name);
    refuse(kOtherTextMethods);
  } else if (value.as_dict() != nullptr) {
    if (has(kDictMethods, name)) return method(value, name);
    refuse(kOtherDictMethods);
  } else if (value.as_list() != nullptr) {
    refuse(kListMethods);
  } else if (any_number(value)) {
    refuse(kNumberMembers);
  } else if (const Loop* loop = value.as_loop()) {
    return loop_member(*loop, name);
  } else if (const Namespace* space = value.as_space()) {
    if (const Value* found = space->find(name)) return *found;
  }
  return std::nullopt;
}

std::optional<Value> subscript(const Value& value, const Value& key, Budget& budget) {
  if (const Dict* dict = value.as_dict()) {
    const Text* name = key.as_text();
    const Value* found = name == nullptr ? nullptr : dict->find(name->bytes());
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  const auto index = whole_number(key);
  if (!index) return std::nullopt;
  const auto at = [&](std::size_t size) -> std::optional<std::size_t> {
    const auto length = static_cast<std::int64_t>(size);
    if (*index >= length || *index < -length) return std::nullopt;
    return static_cast<std::size_t>(*index < 0 ? *index + length : *index);
  };
  if (const List* list = value.as_list()) {
    if (list->kind == List::Kind::view || list->kind == List::Kind::generator) return std::nullopt;
    const auto place = at(list->items.size());
    return place ? std::optional(list->items[*place]) : std::nullopt;
  }
  if (const Text* text = value.as_text()) {
    budget.text(text->size());
    const auto place = at(count_characters(text->bytes()));
    if (!place) return std::nullopt;
    const std::size_t begin = byte_of_character(text->bytes(), *place);
    std::size_t end = begin;
    static_cast<void>(next_character(text->bytes(), end));
    return Value::text(text->part(begin, end));
  }
  return std::nullopt;
}

}  // namespace

Value member_of(const Value& value, std::string_view name, Budget& budget) {
  if (value.is_undefined()) fail_undefined(value);
  if (auto found = attribute(value, name)) return *found;
  if (value.as_dict() != nullptr)
    if (auto found = subscript(value, Value::text(std::string(name)), budget)) return *found;
  return Value::undefined(fmt::format("'{}' of a {}", shown(name), type_name(value)));
}

Value item_of(const Value& value, const Value& key, Budget& budget) {
  if (value.is_undefined()) fail_undefined(value);
  if (auto found = subscript(value, key, budget)) return *found;
  if (const Text* name = key.as_text())
    if (auto found = attribute(value, name->bytes())) return *found;
  if (const Text* name = key.as_text())
    return Value::undefined(fmt::format("'{}' of a {}", shown(name->bytes()), type_name(value)));
  return Value::undefined(fmt::format("an item of a {}", type_name(value)));
}

List pairs_of(const Dict& dict, List::Kind kind, Budget& budget) {
  List pairs;
  pairs.kind = kind;
  for (const auto& [key, value] : dict.entries()) {
    budget.step();
    pairs.items.push_back(
        Value::list({.items = {Value::text(key), value}, .kind = List::Kind::tuple}));
  }
  return pairs;
}

namespace {

const Text& wanted_text(const Value* value, std::string_view method) {
  const Text* text = value == nullptr ? nullptr : value->as_text();
  if (text == nullptr)
    throw Fault{fmt::format("{}() wants a text, not {}", method,
                            value == nullptr ? "nothing" : type_name(*value))};
  return *text;
}

/// A text, or none for the method's own choice.
const Text* text_or_none(const Value* value, std::string_view method) {
  return value == nullptr || value->is_none() ? nullptr : &wanted_text(value, method);
}

std::int64_t number_or(const Value* value, std::int64_t preset, std::string_view method) {
  if (value == nullptr) return preset;
  const auto number = whole_number(*value);
  if (!number)
    throw Fault{fmt::format("{}() wants a whole number, not {}", method, type_name(*value))};
  return *number;
}

Value list_of(const std::vector<Text>& parts) {
  List list;
  for (const Text& part : parts) list.items.push_back(Value::text(part));
  return Value::list(std::move(list));
}

bool begins_or_ends(const Text& text, const Value* value, bool begins, std::string_view method) {
  const auto one = [&](const Value* part) {
    const std::string& bytes = wanted_text(part, method).bytes();
    return begins ? text.bytes().starts_with(bytes) : text.bytes().ends_with(bytes);
  };
  const List* several = value == nullptr ? nullptr : value->as_list();
  if (several == nullptr || several->kind != List::Kind::tuple) return one(value);
  return std::ranges::any_of(several->items, [&](const Value& part) { return one(&part); });
}

std::int64_t found_at(const Text& text, const Text& part) {
  const std::size_t found = text.bytes().find(part.bytes());
  if (found == std::string::npos) return -1;
  return static_cast<std::int64_t>(
      count_characters(std::string_view(text.bytes()).substr(0, found)));
}

std::int64_t count_of(const Text& text, const Text& part) {
  if (part.empty()) return static_cast<std::int64_t>(count_characters(text.bytes())) + 1;
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = text.bytes().find(part.bytes(), at)) != std::string::npos;
       at += part.size())
    ++count;
  return count;
}

Value joined(const Text& between, const Value* value, Budget& budget) {
  if (value == nullptr) throw Fault{"join() wants a list"};
  Text out;
  bool first = true;
  for (const Value& item : items_of(*value, budget)) {
    if (!std::exchange(first, false)) out.append(between);
    out.append(wanted_text(&item, "join"));
    budget.text(out.size() / 16);
    if (out.size() > budget.limits().text) throw Fault{"the template makes too much text"};
  }
  return Value::text(std::move(out));
}

Value call_text_method(std::string_view name, const Value& self, const Arguments& arguments,
                       Budget& budget) {
  if (self.is_safe_text())
    throw Fault{fmt::format("{}() of what the filter 'safe' gave is not supported", name)};
  const Text& text = *self.as_text();
  const Value* first = arguments.find(0, "");
  const Value* second = arguments.find(1, "");
  budget.text(text.size());
  if (name == "split" || name == "rsplit") {
    arguments.check(name, 2, {"sep", "maxsplit"});
    const Text* separator = text_or_none(arguments.find(0, "sep"), name);
    const std::int64_t count = number_or(arguments.find(1, "maxsplit"), -1, name);
    if (name == "split" || (separator == nullptr && count < 0))
      return list_of(split(text, separator, count, budget));
    if (separator == nullptr) throw Fault{"rsplit() at spaces with a count is not supported"};
    return list_of(split_from_right(text, *separator, count, budget));
  }
  arguments.check(name, name == "replace" ? 3 : 1);
  if (name == "strip") return Value::text(stripped(text, text_or_none(first, name), true, true));
  if (name == "lstrip") return Value::text(stripped(text, text_or_none(first, name), true, false));
  if (name == "rstrip") return Value::text(stripped(text, text_or_none(first, name), false, true));
  if (name == "startswith" || name == "endswith")
    return Value::boolean(begins_or_ends(text, first, name == "startswith", name));
  if (name == "replace") {
    const std::int64_t count = number_or(arguments.find(2, ""), -1, name);
    return Value::text(
        replaced(text, wanted_text(first, name), wanted_text(second, name), count, budget));
  }
  if (name == "find") return Value::integer(found_at(text, wanted_text(first, name)));
  if (name == "count") return Value::integer(count_of(text, wanted_text(first, name)));
  if (name == "join") return joined(text, first, budget);
  if (name == "removeprefix") {
    const std::string& part = wanted_text(first, name).bytes();
    return text.bytes().starts_with(part) ? Value::text(text.part(part.size(), text.size())) : self;
  }
  if (name == "removesuffix") {
    const std::string& part = wanted_text(first, name).bytes();
    return text.bytes().ends_with(part) ? Value::text(text.part(0, text.size() - part.size()))
                                        : self;
  }
  arguments.check(name, 0);
  if (name == "splitlines") return list_of(lines(text, budget));
  if (name == "upper") return Value::text(in_case(text, Case::upper, budget));
  if (name == "lower") return Value::text(in_case(text, Case::lower, budget));
  return Value::text(in_case(text, Case::capital, budget));
}

}  // namespace

Value call_method(const Function& function, const Arguments& arguments, Budget& budget) {
  const std::string_view name = function.name;
  if (function.self.as_text() != nullptr)
    return call_text_method(name, function.self, arguments, budget);
  const Dict& dict = *function.self.as_dict();
  if (name == "get") {
    arguments.check(name, 2);
    if (arguments.values.empty()) throw Fault{"get() wants a key"};
    check_key(arguments.values[0]);
    const Text* key = arguments.values[0].as_text();
    const Value* found = key == nullptr ? nullptr : dict.find(key->bytes());
    if (found != nullptr) return *found;
    return arguments.values.size() > 1 ? arguments.values[1] : Value::none();
  }
  arguments.check(name, 0);
  if (name == "items") return Value::list(pairs_of(dict, List::Kind::view, budget));
  List list;
  list.kind = List::Kind::view;
  for (const auto& [key, value] : dict.entries()) {
    budget.step();
    list.items.push_back(name == "keys" ? Value::text(key) : value);
  }
  return Value::list(std::move(list));
}

}  // namespace dstrain::chat
