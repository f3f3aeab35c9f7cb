#include "engine/data/text/source_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/data/text/tar_shards.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;

/// Hugging Face names parts "train-00000-of-00002.parquet": all of them must be there.
void check_parts(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    const std::string name = file.stem().string();
    const auto at = name.rfind("-of-");
    if (at == std::string::npos) continue;
    std::size_t parts = 0;
    for (const char c : name.substr(at + 4)) {
      if (c < '0' || c > '9' || parts > 1000000) return;
      parts = parts * 10 + static_cast<std::size_t>(c - '0');
    }
    if (parts == files.size()) continue;
    throw Error(ErrorKind::data,
                fmt::format("{} is one of {} parts, of which {} are there", file.string(), parts,
                            files.size()),
                "fetch the missing parts");
  }
}

}  // namespace

std::vector<fs::path> list_files(const fs::path& folder, std::string_view begin,
                                 std::string_view end) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && name.ends_with(end) && path_kind(entry) != PathKind::folder) {
      found.push_back(entry.path());
    }
  }
  std::ranges::sort(found);
  return found;
}

bool is_file(const fs::path& path) {
  const PathKind kind = path_kind(path);
  if (kind == PathKind::other) (void)open_input_file(path);
  return kind == PathKind::file;
}

SourceFiles json_file(const fs::path& file) {
  if (!path_exists(file)) return {};
  return {.files = {file}};
}

SourceFiles parquet_files(const fs::path& folder, std::string_view begin) {
  SourceFiles found{.files = list_files(folder, begin, ".parquet"), .parquet = true};
  check_parts(found.files);
  // .../squad_v2/train-*.parquet, or a folder of the user's that says so.
  const std::string place = fs::absolute(folder).lexically_normal().string();
  found.unanswerable =
      place.find("squad_v2") != std::string::npos || place.find("squad-v2") != std::string::npos;
  return found;
}

std::optional<Sources> tar_sources(const DataConfig& data, Folders folders) {
  const PathKind kind = path_kind(data.path);
  const bool pattern = kind == PathKind::nothing && data.path.find('{') != std::string::npos;
  const bool named = pattern || (kind == PathKind::file && is_tar_name(data.path));
  if (!named && (folders == Folders::left || kind != PathKind::folder)) return std::nullopt;
  const std::optional<TarShards> tars = find_tar_shards(data.path);
  if (!tars || tars->train.empty()) return std::nullopt;
  const auto files_of = [&](const std::vector<std::string>& names) {
    SourceFiles files{.tar = true};
    for (const std::string& name : names) files.files.push_back(tars->root / name);
    return files;
  };
  return Sources{
      .train = files_of(tars->train), .test = files_of(tars->test), .note = tars->describe()};
}

void fail_missing(const DataConfig& data, const char* expected) {
  throw Error(
      ErrorKind::data,
      fmt::format(
          "data.path '{}' {}; expected {}", data.path,
          path_kind(data.path) == PathKind::folder ? "holds none of these files" : "is not there",
          expected),
      "put the data there, or name its place with --set data.path=... (recipes read DSTRAIN_DATA)");
}

}  // namespace dstrain::text
