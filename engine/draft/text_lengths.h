#pragma once

#include <cstdint>
#include <string>

#include "engine/recipe/recipe.h"

namespace dstrain::draft {

/// Records that are looked at: those at the beginning of the files.
inline constexpr int kLookedRecords = 1000;

/// How long the training samples of a data set of text are, in tokens, by its first records.
struct TextLengths {
  int looked = 0;                   ///< samples that were counted; 0: none was looked at
  int unusable = 0;                 ///< records beside them that cannot be used
  std::string first_unusable = {};  ///< and why the first of them cannot: "FILE: record 2: ..."
  std::int64_t p50 = 0, p95 = 0, longest = 0;
  double mean = 0;
  std::int64_t samples = 0;  ///< of all files
  bool about = false;        ///< that is an estimate by the share of the files that was read
};

/// Encodes the first records by data.tokenizer, else by that of `weights`; prepared tokens are
/// counted whole. Error{data} where none of them can be used, and as of the formats and the
/// tokenizer.
[[nodiscard]] TextLengths measure_lengths(const DataConfig& data, const std::string& weights);

}  // namespace dstrain::draft
