#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/data/tokenizer/metaspace.h"

namespace dstrain {

/// A decoder of tokenizer.json: what it makes of the texts of some tokens.
struct DecodeStep {
  enum class Kind { byte_level, replace, byte_fallback, fuse, strip, metaspace };

  Kind kind = Kind::byte_level;
  std::string pattern = {};         ///< of replace
  std::string content = {};         ///< what replace puts there; the character that strip takes off
  std::size_t start = 0, stop = 0;  ///< of strip: at most so many at each end
  Metaspace metaspace = {};

  void apply(std::vector<std::string>& tokens) const;
};

/// `json` is the value of "decoder". Error{data} names `path`, the key and what is not supported.
[[nodiscard]] std::vector<DecodeStep> read_decoder(const nlohmann::json& json,
                                                   const std::string& path);

}  // namespace dstrain
