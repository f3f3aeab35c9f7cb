#include "engine/data/text/metamathqa.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/data/text/format.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;

Sources find_metamathqa(const DataConfig& data) {
  const fs::path path = data.path;
  if (is_file(path)) {
    return {.train = {.files = {path}, .parquet = path.extension() == ".parquet"}, .test = {}};
  }
  std::vector<fs::path> files = json_file(path / "MetaMathQA-395K.json").files;
  if (files.empty()) files = list_files(path, "MetaMathQA", ".json");
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

void read_metamathqa(const DataConfig&, const SourceFiles& sources, const fs::path& file,
                     const std::string& system, const RecordSink& sink) {
  return sources.parquet ? read_metamathqa_parquet(file, system, sink)
                         : read_metamathqa_json(file, system, sink);
}

}  // namespace

const TextFormat kMetaMathQa = {.name = DatasetName::metamathqa,
                                .find = find_metamathqa,
                                .read = read_metamathqa,
                                .answers = true,
                                .chat = true};

}  // namespace dstrain::text
