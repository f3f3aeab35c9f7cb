#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/data/text/format.h"
#include "engine/data/text/token_file.h"

/// Files of tokens that `dstrain data prepare` has made of other data sets.
namespace dstrain::text {
namespace {

/// Each says which split its source was; one that cannot be read is in the training split, where
/// it is named.
Sources find_tokens(const DataConfig& data) {
  std::vector<std::filesystem::path> files;
  if (is_file(data.path))
    files = {data.path};
  else
    files = list_files(data.path, "", ".tokens");
  if (files.empty()) fail_missing(data, "*.tokens, or a file of tokens");
  Sources sources;
  for (const std::filesystem::path& path : files) {
    std::string problem;
    const auto file = TokenFile::open_any(path, problem);
    const bool test = file && file->summary().test;
    (test ? sources.test : sources.train).files.push_back(path);
  }
  if (sources.train.files.empty())
    fail_missing(data, "*.tokens of a training split; these are all of test splits");
  return sources;
}

void read_tokens(const DataConfig&, const SourceFiles&, const std::filesystem::path&,
                 const std::string&, const RecordSink&) {
  DSTRAIN_CHECK(false, "token files have no records to read");
}

}  // namespace

const TextFormat kTokens = {
    .name = DatasetName::tokens, .find = find_tokens, .read = read_tokens, .prepared = true};

}  // namespace dstrain::text
