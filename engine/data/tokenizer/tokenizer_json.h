#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// tokenizer.json, taken apart in one pass: the two large lists compactly, all else as it is.
struct TokenizerJson {
  /// Bytes of `text`.
  struct Text {
    std::uint32_t offset = 0;
    std::uint32_t length = 0;
  };
  struct Entry {
    Text token;
    std::int32_t id = 0;
  };
  struct Merge {
    Text left;
    Text right;
  };

  std::string text;           ///< every token of `vocab` and `merges`, one after the other
  std::vector<Entry> vocab;   ///< in the order of the file
  std::vector<Merge> merges;  ///< both spellings: ["a","b"] and "a b"
  bool has_vocab = false;     ///< model.vocab is there and an object
  bool has_merges = false;    ///< model.merges is there and a list
  nlohmann::json rest;        ///< an object: the file without these two

  [[nodiscard]] std::string_view view(Text part) const {
    return std::string_view(text).substr(part.offset, part.length);
  }
};

/// Largest id that is accepted; vocabularies are far smaller, and a wrong number must not allocate
/// gigabytes.
inline constexpr std::int32_t kMaxTokenId = (1 << 24) - 1;

/// Error{data} names `path`, the key or the byte, and what was expected.
[[nodiscard]] TokenizerJson read_tokenizer_json(std::string_view json, const std::string& path);

/// A small JSON object, such as tokenizer_config.json. Error{data} likewise.
[[nodiscard]] nlohmann::json read_small_json(std::string_view json, const std::string& path);

}  // namespace dstrain
