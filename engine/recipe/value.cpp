#include "engine/recipe/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

namespace dstrain {
namespace {

/// Quoted unless it is one plain word; `$` doubled, so that nothing is expanded a second time.
std::string yaml_string(const std::string& text) {
  const auto in_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./").find(c) != std::string_view::npos;
  };
  const bool starts_plain = !text.empty() && text[0] != '-' && text[0] != '.';
  const bool is_null = text == "null" || text == "Null" || text == "NULL";
  if (starts_plain && !is_null && std::all_of(text.begin(), text.end(), in_word)) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '\n') {
      quoted += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
    if (c == '$') quoted += '$';
  }
  return quoted + "\"";
}

}  // namespace

std::string yaml_value(const Slot& slot) {
  const auto write = [](auto source) -> std::string {
    using Source = decltype(source);
    if constexpr (std::is_same_v<Source, std::string*>) {
      return yaml_string(*source);
    } else if constexpr (std::is_same_v<Source, Interval*>) {
      return to_text(*source);
    } else if constexpr (std::is_same_v<Source, std::vector<std::string>*>) {
      std::vector<std::string> quoted;
      for (const std::string& text : *source) quoted.push_back(yaml_string(text));
      return fmt::format("[{}]", fmt::join(quoted, ", "));
    } else if constexpr (std::is_same_v<Source, std::vector<int>*> ||
                         std::is_same_v<Source, std::vector<double>*>) {
      return fmt::format("[{}]", fmt::join(*source, ", "));
    } else if constexpr (std::is_same_v<Source, EnumSlot>) {
      return std::string(spelling(source.all, source.get(source.at)));
    } else if constexpr (std::is_same_v<Source, EnumListSlot>) {
      std::vector<std::string_view> names;
      for (const int value : source.get(source.at)) names.push_back(spelling(source.all, value));
      return fmt::format("[{}]", fmt::join(names, ", "));
    } else {
      return fmt::format("{}", *source);
    }
  };
  return std::visit(write, slot);
}

}  // namespace dstrain
