#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/decode_steps.h"

namespace dstrain {

/// From ids back to text ("decoder" of tokenizer.json).
class Decoder {
 public:
  /// `json` is its value. Error{data} names `path`, the key and what is not supported.
  Decoder(const nlohmann::json& json, const std::string& path);

  /// `token` is as the vocabulary writes it; for a byte-level one in byte characters
  /// (byte_alphabet.h), or as it is where one of them stands for no byte.
  void set(std::int32_t id, std::string_view token, bool special);

  /// Error{data} where the steps make far more text than the tokens have.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids,
                                   bool skip_special_tokens) const;

  /// Greatest id + 1.
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }

 private:
  struct Token {
    std::uint32_t offset = 0;
    std::uint32_t length = 0;
    bool special = false;
    bool known = false;
  };
  std::string path_;
  std::vector<DecodeStep> steps_;
  bool byte_level_;            ///< the one step, which is done when tokens are set
  std::vector<Token> tokens_;  ///< by id
  std::string bytes_;
};

}  // namespace dstrain
