#pragma once

#include <filesystem>
#include <vector>

#include "engine/data/text/record.h"
#include "recipes/schema/recipe.h"

namespace dstrain::text {

/// Files that are read one after the other.
struct SourceFiles {
  std::vector<std::filesystem::path> files = {};
  bool parquet = false;
  bool unanswerable = false;  ///< SQuAD v2, where only the folder can say it (parquet)
};

/// What data.path holds. `test` has no files where the data set has no test split.
struct Sources {
  SourceFiles train = {}, test = {};
};

/// Error{data} or Error{usage} says which files were looked for:
/// - squad: the folder with train-v1.1.json and dev-v1.1.json (or v2.0), or train-*.parquet and
///   validation-*.parquet, in it or its plain_text/ or squad_v2/; or the training file itself;
/// - metamathqa: MetaMathQA-395K.json (or MetaMathQA*.json), or *.parquet, or their folder;
/// - jsonl: a file, or the folder with train.jsonl and maybe test.jsonl.
[[nodiscard]] Sources find_sources(const DataConfig& data);

/// Reads one of the files as `data` says; chats begin with the message `system`.
void read_source(const DataConfig& data, const SourceFiles& sources,
                 const std::filesystem::path& file, const std::string& system,
                 const RecordSink& sink);

/// Error{usage} where data.prompt or data.response is no template (jsonl).
void check_templates(const DataConfig& data);

}  // namespace dstrain::text
