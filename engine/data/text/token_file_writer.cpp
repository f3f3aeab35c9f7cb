#include <array>
#include <cstddef>

#include "engine/base/error.h"
#include "engine/data/text/hash.h"
#include "engine/data/text/token_file.h"
#include "engine/data/text/token_file_summary.h"

namespace dstrain::text {

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, const KeyField& key,
                                 int token_bytes)
    : file_(path), key_(key), token_bytes_(token_bytes) {
  DSTRAIN_CHECK(token_bytes == 2 || token_bytes == 4, "tokens of 2 or 4 bytes");
  const TokenFileHeader header;
  file_.write(std::as_bytes(std::span(&header, 1)));
}

void TokenFileWriter::add(std::span<const std::uint32_t> tokens, TokenFile::Sample sample) {
  tokens_ += tokens.size();
  sample.end = tokens_;
  index_.push_back(sample);
  std::vector<std::uint16_t> narrow;
  std::span<const std::byte> bytes = std::as_bytes(tokens);
  if (token_bytes_ == 2) {
    narrow.reserve(tokens.size());
    for (const std::uint32_t token : tokens) {
      DSTRAIN_CHECK(token <= 0xffff, "a token that needs more than two bytes");
      narrow.push_back(static_cast<std::uint16_t>(token));
    }
    bytes = std::as_bytes(std::span(narrow));
  }
  tokens_hash_.add(bytes);
  file_.write(bytes);
}

void TokenFileWriter::finish(const TokenFileSummary& summary) {
  const std::string text = format_summary(summary);
  TokenFileHeader header{.key = key_,
                         .token_bytes = static_cast<std::uint64_t>(token_bytes_),
                         .samples = index_.size(),
                         .tokens = tokens_,
                         .summary_bytes = text.size(),
                         .tokens_hash = tokens_hash_.hash64()};
  constexpr std::array<std::byte, 8> kZeros{};
  file_.write(std::span(kZeros).first((8 - tokens_ * header.token_bytes % 8) % 8));
  Hasher index;
  for (const auto part : {std::as_bytes(std::span(index_)), std::as_bytes(std::span(text))}) {
    index.add(part);
    file_.write(part);
  }
  header.index_hash = index.hash64();
  header.header_hash =
      hash64(std::as_bytes(std::span(&header, 1)).first(offsetof(TokenFileHeader, header_hash)));
  file_.finish(std::as_bytes(std::span(&header, 1)));
}

}  // namespace dstrain::text
