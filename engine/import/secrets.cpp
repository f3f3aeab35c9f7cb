#include "engine/import/secrets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/redact.h"
#include "engine/import/import_state.h"

namespace dstrain::importing {
namespace {

constexpr std::string_view kBreaks = " \t\r\n=:,;\"'`|&()<>{}[]";

/// A word of a text, without marks around it.
struct Part {
  std::size_t begin = 0, end = 0;
};

std::vector<Part> parts_of_text(std::string_view text) {
  std::vector<Part> parts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = text.find_first_not_of(kBreaks, at);
    if (begin == std::string_view::npos) break;
    at = std::min(text.find_first_of(kBreaks, begin), text.size());
    parts.push_back({begin, at});
  }
  return parts;
}

/// End of "scheme://user:" where a password follows, perhaps cut off before its "@"; npos: none.
std::size_t password_in_url(std::string_view text) {
  constexpr std::size_t kTokenSize = 12;  // a token may be the user
  for (std::size_t at = text.find("://"); at != std::string_view::npos;
       at = text.find("://", at + 3)) {
    const std::size_t begin = at + 3;
    const std::size_t end = std::min(text.find_first_of("/ \t\"'?#", begin), text.size());
    const std::string_view host = text.substr(begin, end - begin);
    const std::size_t mark = host.rfind('@'), colon = host.find(':');
    const bool password = colon != std::string_view::npos && colon + 1 < host.size() &&
                          host[0] != '[' &&
                          (colon < mark && mark != std::string_view::npos
                               ? true
                               : host[colon + 1] < '0' || host[colon + 1] > '9');
    if (password) return begin + colon + 1;
    if (mark != std::string_view::npos && mark >= kTokenSize) return begin;
  }
  return std::string_view::npos;
}

/// Position of the first secret; npos: none.
std::size_t first_secret(std::string_view text) {
  std::size_t found = password_in_url(text);
  bool login = false;
  for (const Part& part : parts_of_text(text)) {
    if (part.begin >= found) break;
    const std::string_view word = text.substr(part.begin, part.end - part.begin);
    // "login KEY" and "login --relogin KEY"; names of secrets themselves are told below.
    if (login && !word.starts_with('-')) return part.begin;
    login = login || word == "login" || word == "Bearer" || word == "Basic";
    if (text.substr(part.end).starts_with('\n')) login = false;
    if (is_secret_name(word)) {
      const std::size_t value = text.find_first_not_of(" \t=:\"'", part.end);
      if (value != std::string_view::npos && value > part.end) return part.end;
    }
  }
  return found;
}

}  // namespace

std::string without_secrets(std::string_view text) {
  const std::size_t at = first_secret(text);
  if (at == std::string_view::npos) return std::string(text);
  std::string_view open = text.substr(0, at);
  while (open.ends_with(' ')) open.remove_suffix(1);
  return fmt::format("{} (not shown)", open);
}

std::vector<std::string> strike_secrets(std::vector<std::string>& words) {
  std::vector<std::string> said;
  const auto by_name = [&](std::string& entry) {
    const std::size_t equal = entry.find('=');
    if (equal == std::string::npos || without_secrets(entry) == entry) return;
    entry.resize(equal);
    said.push_back(fmt::format("{} is not copied: export it before the launch", entry));
  };
  constexpr std::string_view kExport = "--sbatch=--export=";
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string& word = words[i];
    if (i > 0 && words[i - 1] == "--env") {
      by_name(word);
    } else if (word.starts_with(kExport)) {
      std::vector<std::string> entries;
      std::string_view rest = std::string_view(word).substr(kExport.size());
      while (true) {
        const std::size_t end = std::min(rest.find(','), rest.size());
        by_name(entries.emplace_back(rest.substr(0, end)));
        if (end == rest.size()) break;
        rest.remove_prefix(end + 1);
      }
      word = fmt::format("{}{}", kExport, fmt::join(entries, ","));
    }
  }
  std::erase_if(words, [&](const std::string& word) {
    const std::string shown_word = without_secrets(word);
    if (shown_word == word || !word.starts_with("--")) return false;
    said.push_back(fmt::format("{} is not copied: add it to the launch by hand", shown_word));
    return true;
  });
  return said;
}

}  // namespace dstrain::importing
