#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/text/token_file.h"

namespace dstrain::text {

/// Token files one after the other, as one. Movable; any thread may read.
class TokenFiles {
 public:
  explicit TokenFiles(std::vector<TokenFile> files);

  [[nodiscard]] std::int64_t size() const { return firsts_.back(); }
  struct Sample {
    std::uint64_t group = 0;     ///< as of TokenFile::Sample
    std::uint32_t response = 0;  ///< the same
    std::int64_t record = 0;     ///< counted from 0 through all files
  };
  [[nodiscard]] Sample sample(std::int64_t i) const;
  [[nodiscard]] std::int64_t length(std::int64_t i) const;
  /// As TokenFile::copy.
  void copy(std::int64_t i, std::span<std::int64_t> tokens,
            std::span<std::uint8_t> trained = {}) const;

  /// What the files were made from, one after the other.
  [[nodiscard]] std::string keys() const;
  /// What all files say: records follow one another.
  [[nodiscard]] const TokenFileSummary& summary() const { return summary_; }

 private:
  /// The file that has sample `i`, and which one it is there.
  [[nodiscard]] std::pair<std::size_t, std::int64_t> place(std::int64_t i) const;

  std::vector<TokenFile> files_;
  std::vector<std::int64_t> firsts_;   ///< sample of each file, and the number of all
  std::vector<std::int64_t> records_;  ///< before each file
  TokenFileSummary summary_;
};

/// Prepared files (data.name tokens) as they are. Error{data} names one that is damaged or cut off,
/// was made by another tokenizer than `tokenizer` (its hash), or in another form than the first, or
/// holds pairs of answers.
[[nodiscard]] TokenFiles open_prepared(const std::vector<std::filesystem::path>& files,
                                       const std::string& tokenizer);

}  // namespace dstrain::text
