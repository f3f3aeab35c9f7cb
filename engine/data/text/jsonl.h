#pragma once

#include <filesystem>

#include "engine/data/text/record.h"
#include "engine/data/text/template.h"

namespace dstrain::text {

/// One JSON object per line; blank lines are passed over. A record's number is its line; samples of
/// the same prompt are one group.
void read_jsonl(const std::filesystem::path& file, const Template& prompt, const Template& response,
                const RecordSink& sink);

}  // namespace dstrain::text
