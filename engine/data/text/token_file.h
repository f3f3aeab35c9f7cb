#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/file.h"
#include "engine/data/text/build_file.h"
#include "engine/data/text/hash.h"

namespace dstrain::text {

/// Little-endian; then the tokens (2 or 4 bytes each, filled up to 8 bytes), the index (`samples`
/// times TokenFile::Sample) and the summary (JSON).
struct TokenFileHeader {
  static constexpr std::uint64_t kMagic = 0x326b6f7472747364;  // "dstrtok2"

  std::uint64_t magic = kMagic;
  KeyField key{};  ///< of what the tokens were made from
  std::uint64_t token_bytes = 4;
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;
  std::uint64_t summary_bytes = 0;
  std::uint64_t tokens_hash = 0;  ///< XXH3 of the tokens, without what fills them up
  std::uint64_t index_hash = 0;   ///< XXH3 of index and summary
  std::uint64_t header_hash = 0;  ///< XXH3 of what stands before it
};

/// A record that was left out.
struct Problem {
  std::int64_t record = 0;  ///< counted from 0 through all files
  std::string text;
  bool operator==(const Problem&) const = default;
};

/// TokenFileSummary::set of pairs of answers (data.pairs).
inline constexpr const char* kPairsSet = "pairs of chat";

/// What the file says about itself.
struct TokenFileSummary {
  /// Per input file: records in those before it, and the last one.
  std::vector<std::int64_t> first_records;
  std::int64_t num_records = 0;
  std::int64_t num_problems = 0;
  std::vector<Problem> problems;  ///< the first ones
  std::uint32_t pad = 0;          ///< token that fills up rows
  std::uint32_t end = 0;          ///< token that closes a sample
  std::uint32_t highest = 0;      ///< token of a sample
  std::int64_t highest_record = 0;
  std::string tokenizer;              ///< EncoderSource::tokenizer that it was made with
  std::string set;                    ///< the data set, such as "chat", or kPairsSet
  std::string form;                   ///< hash of how its records became samples
  bool test = false;                  ///< its source is a test split
  bool marked = false;                ///< tokens have kTrainedMark where they are trained
  std::int64_t special_texts = 0;     ///< records with special tokens in what messages say
  std::int64_t special_record = 0;    ///< the first of them
  std::int64_t shortened = 0;         ///< records without their oldest turns
  std::int64_t shortened_record = 0;  ///< the first of them
  bool operator==(const TokenFileSummary&) const = default;
};

/// Tokenised samples in their order, memory-mapped. Movable; any thread may read.
class TokenFile {
 public:
  struct Sample {
    std::uint64_t end = 0;       ///< tokens of the file up to the end of this sample
    std::uint64_t group = 0;     ///< hash that says which split it is in
    std::uint32_t response = 0;  ///< its first token of the response
    std::uint32_t record = 0;    ///< counted from 0 through all input files
  };

  /// Checks key, sizes and hashes; `problem` says why there is no such file or why it cannot be
  /// used. The tokens themselves are read through only when the file changed since that was last
  /// done.
  static std::optional<TokenFile> open(const std::filesystem::path& path, const KeyField& key,
                                       std::string& problem);
  /// The same of whatever it was made from.
  static std::optional<TokenFile> open_any(const std::filesystem::path& path, std::string& problem);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(index_.size()); }
  [[nodiscard]] const Sample& sample(std::int64_t i) const {
    return index_[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] std::int64_t length(std::int64_t i) const {
    return static_cast<std::int64_t>(sample(i).end - begin(i));
  }
  /// The first tokens of sample `i`, as many as `tokens` holds. Error{data} for a token that the
  /// file cannot have.
  void copy(std::int64_t i, std::span<std::int64_t> tokens) const { copy(i, tokens, {}); }
  /// `trained` (as many, or none) gets 1 where the token has a mark.
  void copy(std::int64_t i, std::span<std::int64_t> tokens, std::span<std::uint8_t> trained) const;

  [[nodiscard]] const KeyField& key() const { return header_.key; }
  [[nodiscard]] const TokenFileSummary& summary() const { return summary_; }
  [[nodiscard]] std::int64_t num_tokens() const {
    return static_cast<std::int64_t>(header_.tokens);
  }

 private:
  explicit TokenFile(const std::filesystem::path& path) : path_(path), file_(path) {}
  std::string check(const KeyField* key);
  [[nodiscard]] std::uint64_t begin(std::int64_t i) const { return i == 0 ? 0 : sample(i - 1).end; }

  std::filesystem::path path_;
  MappedFile file_;
  TokenFileHeader header_;
  std::span<const Sample> index_;
  TokenFileSummary summary_;
};

/// Writes a TokenFile sample by sample; it appears at `path` in finish().
class TokenFileWriter {
 public:
  TokenFileWriter(const std::filesystem::path& path, const KeyField& key, int token_bytes);

  /// `sample.end` is set here.
  void add(std::span<const std::uint32_t> tokens, TokenFile::Sample sample);
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(index_.size()); }
  /// Writes index and header.
  void finish(const TokenFileSummary& summary);

 private:
  BuildFile file_;
  KeyField key_;
  int token_bytes_;
  std::uint64_t tokens_ = 0;
  std::vector<TokenFile::Sample> index_;
  Hasher tokens_hash_;
};

}  // namespace dstrain::text
