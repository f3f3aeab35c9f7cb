#include "engine/base/redact.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "engine/base/json.h"

namespace dstrain {
namespace {

/// In which a text may show `value`.
std::vector<std::string> forms_of_secret(const std::string& value) {
  std::vector<std::string> forms = {value};
  const std::string quoted = json_text(nlohmann::json(value));
  forms.push_back(quoted.substr(1, quoted.size() - 2));
  // Output is taken in pieces of whole lines.
  std::istringstream lines(value);
  for (std::string line; std::getline(lines, line);) forms.push_back(line);
  return forms;
}

}  // namespace

bool is_secret_name(std::string_view text) {
  std::string name(text.substr(std::min(text.find_first_not_of('-'), text.size())));
  std::ranges::transform(name, name.begin(), [](unsigned char c) {
    return c == '-' ? '_' : static_cast<char>(std::toupper(c));
  });
  constexpr std::string_view kEndings[] = {"KEY", "TOKEN", "AUTH", "COOKIE", "_PASS", "_PWD"};
  constexpr std::string_view kParts[] = {"API_KEY",    "SECRET", "PASSWORD",  "PASSWD",
                                         "PASSPHRASE", "BEARER", "CREDENTIAL"};
  return std::ranges::any_of(kEndings,
                             [&](std::string_view ending) { return name.ends_with(ending); }) ||
         std::ranges::any_of(
             kParts, [&](std::string_view part) { return name.find(part) != std::string::npos; });
}

Redactor::Redactor(const std::vector<std::string>& environment) {
  constexpr std::size_t kShortest = 6;
  for (const std::string& entry : environment) {
    const auto equals = entry.find('=');
    if (equals == std::string::npos || !is_secret_name(entry.substr(0, equals))) continue;
    for (std::string& form : forms_of_secret(entry.substr(equals + 1))) {
      if (form.size() >= kShortest) secrets_.push_back({entry.substr(0, equals), std::move(form)});
    }
  }
  // A secret that contains another one goes first, or its rest would stay readable.
  std::ranges::stable_sort(
      secrets_, [](const Secret& a, const Secret& b) { return a.value.size() > b.value.size(); });
}

void Redactor::apply(std::string& text) const {
  for (const Secret& secret : secrets_) {
    for (auto at = text.find(secret.value); at != std::string::npos;
         at = text.find(secret.value, at + kSecretMask.size())) {
      text.replace(at, secret.value.size(), kSecretMask);
    }
  }
}

std::string Redactor::find(std::string_view text) const {
  constexpr std::size_t kNoChance = 16;
  for (const Secret& secret : secrets_) {
    if (secret.value.size() >= kNoChance && text.find(secret.value) != std::string_view::npos)
      return secret.name;
  }
  return {};
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    entries.emplace_back(*entry);
  return entries;
}

}  // namespace dstrain
