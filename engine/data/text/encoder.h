#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::text {

/// Added to the tokens of a chat that the model is trained to say; no vocabulary is that large.
inline constexpr std::uint32_t kTrainedMark = std::uint32_t{1} << 31;

/// One sample of a chat.
struct EncodedChat {
  std::size_t end = 0;             ///< of its tokens, among all that were appended to
  std::uint32_t last_answer = 0;   ///< its first token
  bool shortened = false;          ///< its oldest turns are gone
  std::uint64_t group = 0;         ///< as of TokenFile::Sample
  std::int64_t special_texts = 0;  ///< special tokens in what messages say, which stay text
};

/// What turning text into tokens needs of a tokenizer.
struct Encoder {
  /// Appends the tokens of `text`, special ones by their names; several threads call it at once.
  std::function<void(std::string_view text, std::vector<std::uint32_t>& tokens)> append;
  /// The same of a text that goes on where the text of `tokens` ends; null: as `append`.
  std::function<void(std::string_view text, std::vector<std::uint32_t>& tokens)> append_more;
  /// A record's prompt, which may be empty, and its response; returns where that begins.
  std::size_t append_record(std::string_view prompt, std::string_view response,
                            std::vector<std::uint32_t>& tokens) const {
    append(prompt, tokens);
    const std::size_t of_response = tokens.size();
    (append_more && !prompt.empty() ? append_more : append)(response, tokens);
    return of_response;
  }
  /// The same of a chat, with marks, and its samples, one or more; returns why its record cannot be
  /// used. Null: records are texts.
  std::function<std::string(std::string_view json, std::vector<std::uint32_t>& tokens,
                            std::vector<EncodedChat>& samples)>
      append_chat;
  std::int64_t vocab_size = 0;       ///< above every token
  std::vector<std::uint32_t> begin;  ///< opens each sample
  std::uint32_t end = 0;             ///< closes each sample
  std::uint32_t pad = 0;             ///< fills up rows
  std::string system;                ///< what a chat begins with
};

/// An encoder that is opened only where there are texts to encode.
struct EncoderSource {
  std::string hash;       ///< equal for encoders that give equal tokens
  std::string tokenizer;  ///< the part of it that is of the tokenizer's files
  std::function<Encoder()> open;
};

}  // namespace dstrain::text
