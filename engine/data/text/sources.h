#pragma once

#include "engine/data/text/source_files.h"
#include "engine/recipe/recipe.h"

namespace dstrain::text {

/// The files of data.path. Error{data} or Error{usage} says which files were looked for:
/// - squad: the folder with train-v1.1.json and dev-v1.1.json (or v2.0), or train-*.parquet and
///   validation-*.parquet, in it or its plain_text/ or squad_v2/; or the training file itself;
/// - metamathqa: MetaMathQA-395K.json (or MetaMathQA*.json), or *.parquet, or their folder;
/// - jsonl: a file, or the folder with train.jsonl and maybe test.jsonl; or tar files;
/// - tokens: a file of tokens, or the folder with *.tokens;
/// - chat: a file, or the folder with train.jsonl, train.json or train-*.parquet and maybe a test;
///   or tar files.
[[nodiscard]] Sources find_sources(const DataConfig& data);

}  // namespace dstrain::text
