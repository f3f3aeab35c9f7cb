#pragma once

#include <cstdint>

#include "engine/data/text/encoder.h"
#include "engine/data/text/progress_sink.h"
#include "engine/data/text/selection.h"
#include "engine/data/text/source_files.h"
#include "engine/data/text/token_files.h"

namespace dstrain::text {

/// One split, tokenised, and its samples that are used.
struct OpenSplit {
  SourceFiles sources;
  TokenFiles file;
  Selection selection;
  bool shares_file = false;  ///< with the other split
};

/// The training or the test split of what `data` names (a data set of files). Error{data} when no
/// sample of it can be used.
[[nodiscard]] OpenSplit open_split(const DataConfig& data, bool test, const EncoderSource& encoder,
                                   ProgressSink* progress);

/// Error{data} naming a record where a token is outside a model's vocabulary.
void check_vocabulary(const DataConfig& data, const OpenSplit& split, std::int64_t vocab_size);

}  // namespace dstrain::text
