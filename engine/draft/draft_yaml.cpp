#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "engine/base/printable.h"
#include "engine/draft/draft.h"

namespace dstrain::draft {
namespace {

constexpr std::size_t kWidestValue = 48;  ///< columns beyond which comments do not line up

std::string_view section_of(const DraftLine& line) {
  return std::string_view(line.key).substr(0, line.key.find('.'));
}
std::string key_and_value(const DraftLine& line) {
  return fmt::format("  {}: {}", line.key.substr(line.key.find('.') + 1), line.value);
}

}  // namespace

std::string yaml_text(const std::string& text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '/' || c == '-';
  };
  const bool letter_first = !text.empty() && (text.front() == '/' || text.front() == '_' ||
                                              (text.front() >= 'a' && text.front() <= 'z') ||
                                              (text.front() >= 'A' && text.front() <= 'Z'));
  // With one of these it is none of the words that YAML takes for something else.
  if (letter_first && text.find_first_of("/.") != std::string::npos &&
      std::ranges::all_of(text, plain))
    return text;
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        quoted += "\\\"";
        break;
      case '\\':
        quoted += "\\\\";
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\t':
        quoted += "\\t";
        break;
      case '$':  // not a variable's
        quoted += "$$";
        break;
      default:
        quoted += c;
    }
  }
  return quoted + '"';
}

std::string draft_yaml(const std::vector<DraftLine>& lines, const std::string& title) {
  std::string text = fmt::format("# {}\n", shown(title, 300));
  for (std::size_t begin = 0; begin < lines.size();) {
    std::size_t end = begin, width = 0;
    for (; end < lines.size() && section_of(lines[end]) == section_of(lines[begin]); ++end) {
      const std::size_t own = key_and_value(lines[end]).size();
      if (own <= kWidestValue) width = std::max(width, own);
    }
    text += fmt::format("{}:\n", section_of(lines[begin]));
    for (; begin < end; ++begin) {
      const DraftLine& line = lines[begin];
      text += line.reason.empty() ? key_and_value(line) + "\n"
                                  : fmt::format("{:<{}}  # {}\n", key_and_value(line), width,
                                                shown(line.reason, 300));
    }
  }
  return text;
}

}  // namespace dstrain::draft
