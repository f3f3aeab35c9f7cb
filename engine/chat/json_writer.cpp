#include "engine/chat/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/chat/characters.h"

namespace dstrain::chat {

namespace {

class JsonDump {
 public:
  JsonDump(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  Text dump(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void write(const Value& value, int level) {
    budget_.step();
    const Source source = value.source();
    if (const Text* text = value.as_text()) return write_text(*text, source);
    if (const List* list = value.as_list()) return write_list(*list, source, level);
    if (const Dict* dict = value.as_dict()) return write_dict(*dict, source, level);
    if (value.is_none()) return put("null", source);
    if (const bool* boolean = value.as_bool()) return put(*boolean ? "true" : "false", source);
    if (const std::int64_t* integer = value.as_integer())
      return put(fmt::format("{}", *integer), source);
    if (const double* real = value.as_real()) return put(number(*real), source);
    if (value.is_undefined()) throw Fault{fmt::format("tojson: {} is undefined", value.what())};
    throw Fault{fmt::format("tojson: a {} is no JSON", type_name(value))};
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return python_float(value);
  }

  void write_list(const List& list, Source source, int level) {
    if (list.kind != List::Kind::list && list.kind != List::Kind::tuple)
      throw Fault{"tojson: a view, range or generator is no JSON; use the filter list"};
    if (list.items.empty()) return put("[]", source);
    put("[", source);
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) put(style_.between, source);
      new_line(level + 1, source);
      write(list.items[i], level + 1);
    }
    new_line(level, source);
    put("]", source);
  }

  void write_dict(const Dict& dict, Source source, int level) {
    if (dict.entries().empty()) return put("{}", source);
    std::vector<const Dict::Entry*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys)
      std::ranges::stable_sort(entries, {}, [](const Dict::Entry* entry) -> const std::string& {
        return entry->key.bytes();
      });
    put("{", source);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) put(style_.between, source);
      new_line(level + 1, source);
      write_text(entries[i]->key, source);
      put(style_.after_key, source);
      write(entries[i]->value, level + 1);
    }
    new_line(level, source);
    put("}", source);
  }

  void new_line(int level, Source source) {
    if (!style_.indent) return;
    std::string line = "\n";
    for (int i = 0; i < level; ++i) line += *style_.indent;
    put(line, source);
  }

  void write_text(const Text& text, Source quotes) {
    put("\"", quotes);
    std::size_t plain = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      const std::string escape = escaped(next_character(text.bytes(), at));
      if (escape.empty()) continue;
      keep(text, plain, begin);
      put(escape, text.source_at(begin));
      plain = at;
    }
    keep(text, plain, text.size());
    put("\"", quotes);
  }

  /// Empty where the character stands for itself.
  [[nodiscard]] std::string escaped(std::uint32_t c) const {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\f':
        return "\\f";
      case '\b':
        return "\\b";
      default:
        break;
    }
    if (c < 0x20 || (style_.ascii && c >= 0x7F && c < 0x10000)) return fmt::format("\\u{:04x}", c);
    if (!style_.ascii || c < 0x7F) return {};
    const std::uint32_t rest = c - 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  }

  void keep(const Text& text, std::size_t begin, std::size_t end) {
    budget_.text(end - begin);
    out_.append_part(text, begin, end);
    check();
  }

  void put(std::string_view bytes, Source source) {
    budget_.text(bytes.size());
    out_.append(bytes, source);
    check();
  }

  void check() const {
    if (out_.size() > budget_.limits().text) throw Fault{"the template makes too much text"};
  }

  const JsonStyle& style_;
  Budget& budget_;
  Text out_;
};

}  // namespace

Text json_dumps(const Value& value, const JsonStyle& style, Budget& budget) {
  return JsonDump(style, budget).dump(value);
}

}  // namespace dstrain::chat
