#include "engine/report/kernel_name.h"

#include <algorithm>
#include <array>

namespace dstrain::report {
namespace {

bool in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// Without the list of parameters at the end, if what stands before it is a name or a template.
std::string_view without_parameters(std::string_view name) {
  if (!name.ends_with(')')) return name;
  int depth = 0;
  for (std::size_t i = name.size(); i-- > 0;) {
    if (name[i] == ')') ++depth;
    if (name[i] == '(' && --depth == 0)
      return i > 0 && (in_name(name[i - 1]) || name[i - 1] == '>') ? name.substr(0, i) : name;
  }
  return name;
}

/// The start of a UTF-8 character at or before `at`.
std::size_t character_start(std::string_view text, std::size_t at) {
  while (at > 0 && at < text.size() && (text[at] & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

std::string kernel_words(std::string_view name) {
  constexpr std::string_view kNothing = "void ";
  if (name.starts_with(kNothing)) name.remove_prefix(kNothing.size());
  name = without_parameters(name);
  static constexpr std::array<std::string_view, 3> kUnnamed = {
      "(anonymous namespace)::", "<unnamed>::", "{anonymous}::"};
  std::string out;
  for (std::size_t i = 0; i < name.size();) {
    const std::string_view rest = name.substr(i);
    const auto unnamed = std::ranges::find_if(
        kUnnamed, [&](std::string_view text) { return rest.starts_with(text); });
    if (unnamed != kUnnamed.end()) {
      i += unnamed->size();
    } else if (rest.starts_with("::") && !out.empty() && in_name(out.back())) {
      while (!out.empty() && in_name(out.back())) out.pop_back();
      i += 2;
    } else {
      out += name[i++];
    }
  }
  return out.empty() ? std::string(name) : out;
}

std::string without_middle(const std::string& text, std::size_t characters) {
  if (text.size() <= characters) return text;
  const std::size_t end = (characters - 3) / 3;
  const std::size_t begin = characters - 3 - end;
  return text.substr(0, character_start(text, begin)) + "..." +
         text.substr(character_start(text, text.size() - end));
}

}  // namespace dstrain::report
