#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/text/source_files.h"
#include "engine/data/text/token_files.h"

namespace dstrain::text {

/// Which samples of a token file make one split, and what was done to those that do not fit. With
/// data.pairs the two of a pair follow one another, and subset and counts are of pairs.
struct Selection {
  std::vector<std::uint32_t> samples;
  std::vector<std::int32_t> lengths;  ///< after cutting
  std::int64_t cut = 0;
  std::int64_t too_long = 0;   ///< left out
  std::int64_t unused = 0;     ///< records with a problem, of the whole file
  std::string first_left_out;  ///< "FILE: record 17: its answer is empty"; empty when there is none
};

enum class Part {
  whole,    ///< the file is the split
  train,    ///< without the groups held out
  held_out  ///< data.test_share of the groups (of the records of a single group), at least one
};

/// Applies data.too_long, data.sequence, data.test_share and data.subset. A sample cut before its
/// response is left out when only the response is trained. Error{data} where data.too_long or
/// data.bad_record says stop.
[[nodiscard]] Selection select(const DataConfig& data, const SourceFiles& sources,
                               const TokenFiles& file, Part part);

/// "data, train: 87,599 samples, 12 cut to 512 tokens, 3 left out: first at FILE: record 17: ..."
[[nodiscard]] std::string describe(const DataConfig& data, const char* split,
                                   const Selection& selection);

/// ", 3 left out: first at FILE: record 17: ..."; empty when none is.
[[nodiscard]] std::string left_out_text(const Selection& selection);

/// 87599 -> "87,599".
[[nodiscard]] std::string with_commas(std::int64_t number);

}  // namespace dstrain::text
