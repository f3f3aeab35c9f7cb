#include "cmd/env_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/printable.h"

namespace dstrain {
namespace {

constexpr std::uint64_t kMaxEnvFile = std::uint64_t{1} << 20;

bool is_variable_name(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && !(name[0] >= '0' && name[0] <= '9') && std::ranges::all_of(name, fits);
}

}  // namespace

std::vector<std::string> read_env_file(const std::string& path) {
  std::string text;
  try {
    text = read_file(path, kMaxEnvFile);
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, error.what(), error.hint());
  }
  std::vector<std::string> variables;
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos || line[0] == '#') continue;
    if (!is_variable_name(std::string_view(line).substr(0, line.find('='))) ||
        line.find('=') == std::string::npos || line.find('\0') != std::string::npos) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}:{}: '{}' is no NAME=VALUE", path, number, shown(line)),
                  "write one variable a line, without export and blanks around =");
    }
    variables.push_back(std::move(line));
  }
  return variables;
}

}  // namespace dstrain
