#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/tokenizer/byte_alphabet.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain::test {

/// The token of one byte in a byte-level vocabulary.
inline std::string byte_token(unsigned byte) {
  std::string token;
  append_utf8(token, character_of_byte(static_cast<std::uint8_t>(byte)));
  return token;
}

/// Bytes as the vocabulary writes them.
inline std::string byte_text(const std::string& bytes) {
  std::string token;
  for (const char c : bytes) token += byte_token(static_cast<unsigned char>(c));
  return token;
}

using Merges = std::vector<std::pair<std::string, std::string>>;  ///< by bytes

/// tokenizer.json with the 256 bytes as ids 0 to 255 and the merges as the ids after them, cut by
/// `pre_tokenizer` (null: ByteLevel alone, one word).
inline nlohmann::json tokenizer_file(const Merges& merges, nlohmann::json pre_tokenizer = nullptr) {
  nlohmann::json vocab = nlohmann::json::object(), list = nlohmann::json::array();
  for (unsigned byte = 0; byte < 256; ++byte) vocab[byte_token(byte)] = byte;
  for (const auto& [left, right] : merges) {
    vocab[byte_text(left + right)] = vocab.size();
    list.push_back({byte_text(left), byte_text(right)});
  }
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", false}};
  if (pre_tokenizer.is_null()) pre_tokenizer = byte_level;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(list)}}}};
}

/// Sequence of a Split by this pattern and ByteLevel.
inline nlohmann::json split_by(const std::string& regex, const std::string& behavior = "Isolated",
                               bool invert = false) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", regex}}},
             {"behavior", behavior},
             {"invert", invert}},
            {{"type", "ByteLevel"},
             {"add_prefix_space", false},
             {"trim_offsets", true},
             {"use_regex", false}}}}};
}

}  // namespace dstrain::test
