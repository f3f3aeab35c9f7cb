#pragma once

#include <functional>

#include "engine/data/text/encoder.h"
#include "engine/data/text/source_files.h"
#include "engine/data/text/token_file.h"

namespace dstrain::text {

using Tell = std::function<void(double share, const std::string& text)>;

/// Reads `sources` on the calling thread, encodes on all cores, and writes samples in the order of
/// the files, so that the result does not depend on the number of threads. Records with a problem
/// are left out and counted, or end it (Error{data}), as data.bad_record says. A sample is prompt,
/// response and `encoder.end`, unless the response ends with that already. `tell` receives how far
/// it is, a few times a second.
[[nodiscard]] TokenFileSummary tokenise(const DataConfig& data, const SourceFiles& sources,
                                        const Encoder& encoder, TokenFileWriter& writer,
                                        const Tell& tell);

/// "FILE: record 17: its answer is empty", for a record counted from 0 through all files.
[[nodiscard]] std::string describe_record(const DataConfig& data, const SourceFiles& sources,
                                          const TokenFileSummary& summary, std::int64_t record);

/// Error{data} for the first record with a problem.
[[noreturn]] void throw_problem(const DataConfig& data, const SourceFiles& sources,
                                const TokenFileSummary& summary);

}  // namespace dstrain::text
