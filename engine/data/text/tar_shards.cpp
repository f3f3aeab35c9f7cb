#include "engine/data/text/tar_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/data/text/test_folders.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Whether a name has one of the words, between other characters than letters.
bool has_word(const std::string& name, std::string_view word) {
  const auto letter = [&](std::size_t at) {
    return at < name.size() && std::isalpha(static_cast<unsigned char>(name[at])) != 0;
  };
  for (std::size_t at = name.find(word); at != std::string::npos; at = name.find(word, at + 1)) {
    if ((at == 0 || !letter(at - 1)) && !letter(at + word.size())) return true;
  }
  return false;
}

/// Digits alone; -1 for others.
std::int64_t number_of(const std::string& digits) {
  std::int64_t value = -1;
  const char* const last = digits.data() + digits.size();
  const auto [end, mistake] = std::from_chars(digits.data(), last, value);
  return mistake == std::errc() && end == last ? value : -1;
}

/// "a-{08..10}.tar" as a-08.tar, a-09.tar, a-10.tar.
std::vector<std::string> expand(const std::string& pattern) {
  const std::size_t open = pattern.find('{');
  if (open == std::string::npos) return {pattern};
  const std::size_t close = pattern.find('}', open), dots = pattern.find("..", open);
  const auto refuse = [&](const char* why) {
    throw Error(ErrorKind::usage, fmt::format("data.path '{}': {}", pattern, why),
                "write for example train-{000000..000146}.tar");
  };
  if (close == std::string::npos || dots == std::string::npos || dots > close)
    refuse("a brace without {FIRST..LAST}");
  const std::string first = pattern.substr(open + 1, dots - open - 1),
                    last = pattern.substr(dots + 2, close - dots - 2);
  const std::int64_t from = number_of(first), to = number_of(last);
  constexpr std::int64_t kMax = 1000000;
  if (from < 0 || to < from || to - from >= kMax) refuse("a range that does not go up");
  std::vector<std::string> all;
  for (std::int64_t i = from; i <= to; ++i) {
    const std::string number = fmt::format("{:0{}}", i, first.size());
    for (const std::string& rest : expand(pattern.substr(close + 1)))
      all.push_back(pattern.substr(0, open) + number + rest);
  }
  return all;
}

/// Tar files of a folder, and of the folders in it if `deeper`, relative to it, by name.
std::vector<std::string> tars_below(const fs::path& root, bool deeper) {
  std::vector<std::string> found;
  std::error_code none;
  const auto look = [&](const fs::path& folder, bool further, const auto& self) -> void {
    for (const auto& entry : fs::directory_iterator(folder, none)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with('.')) continue;
      if (entry.is_directory(none)) {
        if (further) self(entry.path(), false, self);
      } else if (is_tar_name(name)) {
        found.push_back(entry.path().lexically_relative(root).string());
      }
    }
  };
  look(root, deeper, look);
  std::ranges::sort(found);
  return found;
}

}  // namespace

bool is_tar_name(std::string_view name) {
  return name.ends_with(".tar") || name.find(".tar.") != std::string_view::npos ||
         name.ends_with(".tgz");
}

std::string TarShards::describe() const {
  if (train.size() + test.size() + unused.size() < 2) return "";
  std::string text =
      fmt::format("in {}: {} tar file{} for training, the first is {}", root.string(), train.size(),
                  train.size() == 1 ? "" : "s", train.front());
  if (!test.empty())
    text += fmt::format("; {} for evaluation, the first is {}", test.size(), test.front());
  if (!unused.empty())
    text += fmt::format("; left out: {} of further splits, the first is {}", unused.size(),
                        unused.front());
  return text;
}

std::optional<TarName> tar_name(std::string_view member) {
  const std::size_t file = member.rfind('/') + 1;  // npos + 1 is 0
  const std::size_t dot = member.find('.', file);
  if (dot == std::string_view::npos || dot == file) return std::nullopt;
  TarName name{.key = std::string(member.substr(0, dot)),
               .ending = std::string(member.substr(dot + 1))};
  std::ranges::transform(name.ending, name.ending.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return name;
}

std::optional<TarShards> find_tar_shards(const std::string& data_path) {
  const fs::path path = data_path;
  TarShards tars;
  const bool pattern = data_path.find('{') != std::string::npos;
  if (!pattern && path_kind(path) == PathKind::folder) {
    tars.root = path;
  } else {
    tars.root = path.parent_path();
    tars.train = expand(path.filename().string());
    if (!pattern && !path_exists(path)) return std::nullopt;
  }
  if (tars.root.empty()) tars.root = ".";
  if (path_kind(tars.root) != PathKind::folder) return std::nullopt;
  const bool listed = !tars.train.empty();
  for (const std::string& name : tars_below(tars.root, !listed)) {
    if (std::ranges::find(tars.train, name) != tars.train.end()) continue;
    const auto word =
        std::ranges::find_if(kTestFolders, [&](const char* one) { return has_word(name, one); });
    if (word == kTestFolders.end()) {
      if (!listed) tars.train.push_back(name);
      continue;
    }
    tars.unused.push_back(name);
  }
  for (const char* word : kTestFolders) {
    const auto of_word = [&](const std::string& name) { return has_word(name, word); };
    if (std::ranges::none_of(tars.unused, of_word)) continue;
    const auto [first, last] = std::ranges::stable_partition(
        tars.unused, [&](const std::string& name) { return !of_word(name); });
    tars.test.assign(first, last);
    tars.unused.erase(first, last);
    break;
  }
  return tars;
}

}  // namespace dstrain
