#include "engine/data/text/sources.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/data/text/jsonl.h"
#include "engine/data/text/metamathqa.h"
#include "engine/data/text/squad.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;

/// Files of `folder` whose names begin and end so, by name.
std::vector<fs::path> list(const fs::path& folder, std::string_view begin, std::string_view end) {
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

/// Whether `path` is meant as the file itself; what is neither that nor a folder is refused.
bool is_file(const fs::path& path) {
  const PathKind kind = path_kind(path);
  if (kind == PathKind::other) (void)open_input_file(path);
  return kind == PathKind::file;
}

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

SourceFiles parquet_files(const fs::path& folder, std::string_view begin) {
  SourceFiles found{.files = list(folder, begin, ".parquet"), .parquet = true};
  check_parts(found.files);
  // .../squad_v2/train-*.parquet, or a folder of the user's that says so.
  const std::string place = fs::absolute(folder).lexically_normal().string();
  found.unanswerable =
      place.find("squad_v2") != std::string::npos || place.find("squad-v2") != std::string::npos;
  return found;
}

SourceFiles json_file(const fs::path& file) {
  if (!path_exists(file)) return {};
  return {.files = {file}};
}

[[noreturn]] void fail_missing(const DataConfig& data, const char* what) {
  throw Error(
      ErrorKind::data,
      fmt::format(
          "data.path '{}' {}; expected {}", data.path,
          path_kind(data.path) == PathKind::folder ? "holds none of these files" : "is not there",
          what),
      "put the data there, or name its place with --set data.path=... (recipes read DSTRAIN_DATA)");
}

constexpr const char* kSquadFiles =
    "train-v1.1.json or train-v2.0.json, or train-*.parquet (maybe in plain_text/ or squad_v2/)";

Sources squad_file(const DataConfig& data) {
  const fs::path file = data.path;
  const std::string name = file.filename().string();
  if (file.extension() == ".parquet") {
    const fs::path folder = file.parent_path();
    if (!name.starts_with("train-")) return {.train = parquet_files(folder, name), .test = {}};
    return {.train = parquet_files(folder, "train-"), .test = parquet_files(folder, "validation-")};
  }
  if (!name.starts_with("train-")) return {.train = json_file(file), .test = {}};
  return {.train = json_file(file),
          .test = json_file(file.parent_path() / ("dev-" + name.substr(6)))};
}

Sources find_squad(const DataConfig& data) {
  if (is_file(data.path)) return squad_file(data);
  std::vector<Sources> found;
  const fs::path folder = data.path;
  for (const char* version : {"v1.1.json", "v2.0.json"}) {
    found.push_back({.train = json_file(folder / fmt::format("train-{}", version)),
                     .test = json_file(folder / fmt::format("dev-{}", version))});
  }
  for (const fs::path& place : {folder, folder / "plain_text", folder / "squad_v2"}) {
    found.push_back(
        {.train = parquet_files(place, "train-"), .test = parquet_files(place, "validation-")});
  }
  std::erase_if(found, [](const Sources& s) { return s.train.files.empty(); });
  if (found.empty()) fail_missing(data, kSquadFiles);
  if (found.size() == 1) return found.front();
  std::vector<std::string> names;
  for (const Sources& s : found) names.push_back(s.train.files.front().string());
  throw Error(ErrorKind::usage,
              fmt::format("data.path '{}' holds SQuAD more than once: {}", data.path,
                          fmt::join(names, ", ")),
              "name the training file itself in data.path");
}

Sources find_metamathqa(const DataConfig& data) {
  const fs::path path = data.path;
  if (is_file(path)) {
    return {.train = {.files = {path}, .parquet = path.extension() == ".parquet"}, .test = {}};
  }
  std::vector<fs::path> files = json_file(path / "MetaMathQA-395K.json").files;
  if (files.empty()) files = list(path, "MetaMathQA", ".json");
  if (files.size() > 1) {
    throw Error(
        ErrorKind::usage,
        fmt::format("data.path '{}' holds {} files MetaMathQA*.json", data.path, files.size()),
        "name the file itself in data.path");
  }
  if (!files.empty()) return {.train = {.files = files}, .test = {}};
  for (const fs::path& place : {path, path / "data", path / "default/train"}) {
    if (auto parts = parquet_files(place, ""); !parts.files.empty()) {
      return {.train = parts, .test = {}};
    }
  }
  fail_missing(data, "MetaMathQA-395K.json or *.parquet (maybe in data/)");
}

Sources find_jsonl(const DataConfig& data) {
  const fs::path path = data.path;
  if (is_file(path)) return {.train = json_file(path), .test = {}};
  Sources found = {.train = json_file(path / "train.jsonl"),
                   .test = json_file(path / "test.jsonl")};
  if (found.train.files.empty()) fail_missing(data, "a file, or a folder with train.jsonl");
  return found;
}

}  // namespace

Sources find_sources(const DataConfig& data) {
  if (data.path.empty()) {
    throw Error(ErrorKind::usage, "data.path is empty; it must name the data set's file or folder",
                "set data.path in the recipe or with --set data.path=...");
  }
  switch (data.name) {
    case DatasetName::squad:
      return find_squad(data);
    case DatasetName::metamathqa:
      return find_metamathqa(data);
    case DatasetName::jsonl:
      return find_jsonl(data);
    default:
      DSTRAIN_CHECK(false, "not a data set of text");
  }
}

void check_templates(const DataConfig& data) {
  if (data.name != DatasetName::jsonl) return;
  const Template prompt(data.prompt, "data.prompt");
  if (!Template(data.response, "data.response").empty()) return;
  throw Error(ErrorKind::usage, "data.response is empty; data.name: jsonl needs it",
              "say which field is the answer, such as data.response: \"{answer}\"");
}

void read_source(const DataConfig& data, const SourceFiles& sources, const fs::path& file,
                 const std::string& system, const RecordSink& sink) {
  if (data.name == DatasetName::squad) {
    return sources.parquet ? read_squad_parquet(file, sources.unanswerable, sink)
                           : read_squad_json(file, sink);
  }
  if (data.name == DatasetName::metamathqa) {
    return sources.parquet ? read_metamathqa_parquet(file, system, sink)
                           : read_metamathqa_json(file, system, sink);
  }
  read_jsonl(file, Template(data.prompt, "data.prompt"), Template(data.response, "data.response"),
             sink);
}

}  // namespace dstrain::text
