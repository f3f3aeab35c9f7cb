#include "engine/data/text/squad.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/data/text/format.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;

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

void read_squad(const DataConfig&, const SourceFiles& sources, const fs::path& file,
                const std::string&, const RecordSink& sink) {
  return sources.parquet ? read_squad_parquet(file, sources.unanswerable, sink)
                         : read_squad_json(file, sink);
}

}  // namespace

const TextFormat kSquad = {
    .name = DatasetName::squad, .find = find_squad, .read = read_squad, .answers = true};

}  // namespace dstrain::text
