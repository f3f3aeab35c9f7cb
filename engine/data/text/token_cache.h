#pragma once

#include <filesystem>

#include "engine/data/text/encoder.h"
#include "engine/data/text/progress_sink.h"
#include "engine/data/text/source_files.h"
#include "engine/data/text/token_files.h"

namespace dstrain::text {

/// For "tokens" or "images": data.cache, else $DSTRAIN_CACHE/tokens, else tokens/ in dstrain's
/// folder below XDG_CACHE_HOME or ~/.cache.
[[nodiscard]] std::filesystem::path cache_folder(const DataConfig& data,
                                                 const char* kind = "tokens");

/// The same, made where it is missing. Error{usage} when it cannot be.
std::filesystem::path make_cache_folder(const DataConfig& data, const char* kind = "tokens");

/// The tokenised samples of `sources`, a token file of each, made first where the cache does not
/// have it: its name holds a hash of the file's content, the tokenizer, and what `data` says of the
/// text. `test`: they are a test split of their own.
/// Length, loss, subset and packing are no part of it. Ranks and runs that want the same file wait
/// for the one that makes it; a file that is damaged or half written is made again. `progress` may
/// be null.
[[nodiscard]] TokenFiles open_tokens(const DataConfig& data, const SourceFiles& sources,
                                     const EncoderSource& encoder, ProgressSink* progress,
                                     bool test = false);

}  // namespace dstrain::text
