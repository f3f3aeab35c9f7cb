#include "launcher/base/redact.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>

namespace dstrain::launcher {
namespace {

constexpr std::string_view kMask = "[secret]";

}  // namespace

bool is_secret_name(std::string_view text) {
  std::string name(text);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return name.ends_with("KEY") || name.ends_with("TOKEN") || name.ends_with("CREDENTIALS") ||
         name.find("SECRET") != std::string::npos || name.find("PASSWORD") != std::string::npos ||
         name.find("PASSWD") != std::string::npos;
}

Redactor::Redactor(const std::vector<std::string>& environment) {
  constexpr std::size_t kShortest = 6;
  for (const std::string& entry : environment) {
    const auto equals = entry.find('=');
    if (equals == std::string::npos) continue;
    Secret secret{entry.substr(0, equals), entry.substr(equals + 1)};
    if (secret.value.size() >= kShortest && is_secret_name(secret.name))
      secrets_.push_back(std::move(secret));
  }
  // A secret that contains another one goes first, or its rest would stay readable.
  std::stable_sort(secrets_.begin(), secrets_.end(), [](const Secret& a, const Secret& b) {
    return a.value.size() > b.value.size();
  });
}

void Redactor::apply(std::string& text) const {
  for (const Secret& secret : secrets_) {
    for (auto at = text.find(secret.value); at != std::string::npos;
         at = text.find(secret.value, at + kMask.size())) {
      text.replace(at, secret.value.size(), kMask);
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

}  // namespace dstrain::launcher
