#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::text {

/// What turning text into tokens needs of a tokenizer.
struct Encoder {
  /// Appends the tokens of `text`, special ones by their names; several threads call it at once.
  std::function<void(std::string_view text, std::vector<std::uint32_t>& tokens)> append;
  std::int64_t vocab_size = 0;       ///< above every token
  std::vector<std::uint32_t> begin;  ///< opens each sample
  std::uint32_t end = 0;             ///< closes each sample
  std::uint32_t pad = 0;             ///< fills up rows
  std::string system;                ///< what a chat begins with
};

/// An encoder that is opened only where there are texts to encode.
struct EncoderSource {
  std::string hash;  ///< equal for encoders that give equal tokens
  std::function<Encoder()> open;
};

}  // namespace dstrain::text
