#include "engine/report/run_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"

namespace dstrain::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 30;

}  // namespace

bool with_file(RunData& run, const fs::path& path,
               const std::function<void(const std::string&)>& read) {
  const std::string name = path.lexically_relative(run.path).string();
  try {
    if (!path_exists(path)) {
      run.missing.push_back(name);
      return false;
    }
    read(read_file(path, kMaxFile));
    return true;
  } catch (const Error& error) {
    run.problems.push_back({name, error.what()});
    return true;
  }
}

void split_lines(std::string_view content, const std::function<void(std::string_view)>& read) {
  for (std::size_t begin = 0; begin < content.size();) {
    const std::size_t end = std::min(content.find('\n', begin), content.size());
    read(content.substr(begin, end - begin));
    begin = end + 1;
  }
}

void each_line(RunData& run, const fs::path& path, const std::function<bool(const json&)>& line) {
  with_file(run, path, [&](const std::string& content) {
    int count = 0;
    int broken = 0;
    int first = 0;
    split_lines(content, [&](std::string_view text) {
      ++count;
      const json value = json_or_null(text, {.bytes = 1 << 20, .values = 20'000});
      if (value.is_object() && line(value)) return;
      if (broken++ == 0) first = count;
    });
    if (broken > 0) {
      run.problems.push_back(
          {path.lexically_relative(run.path).string(),
           fmt::format(
               "{} of {} lines left out: not what a run writes, or cut; the first is line {}",
               broken, count, first)});
    }
  });
}

}  // namespace dstrain::report
