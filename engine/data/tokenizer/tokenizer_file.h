#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/added_tokens.h"
#include "engine/data/tokenizer/token_table.h"
#include "engine/data/tokenizer/tokenizer_json.h"

namespace dstrain {

/// Each reads one part of tokenizer.json as `tokenizers` does; Error{data} names `path`, the key
/// and what is supported.

/// Refuses another model than BPE, and one without vocabulary or merges.
void check_model(const TokenizerJson& file, const std::string& path);

/// The tokens of model.vocab; no two may share an id.
[[nodiscard]] TokenTable read_vocab(const TokenizerJson& file, const std::string& path);

/// Added tokens, each content once. One that the vocabulary lacks gets the next id after its size,
/// whatever id the file says, as in `tokenizers`.
[[nodiscard]] std::vector<AddedToken> read_added_tokens(const nlohmann::json& file,
                                                        const TokenTable& vocab,
                                                        const std::string& path);

/// The value of a key; null where it is absent.
[[nodiscard]] const nlohmann::json& value_of(const nlohmann::json& object, const char* key);

/// Stands for the text among the ids of a template.
inline constexpr std::int32_t kTemplateText = -1;
/// What the post-processor makes of a text: ids and kTemplateText.
[[nodiscard]] std::vector<std::int32_t> read_template(const nlohmann::json& file,
                                                      const std::string& path);

/// What tokenizer_config.json says.
struct TokenizerConfig {
  std::optional<std::string> bos, eos, pad;
  std::string chat_template;
};
[[nodiscard]] TokenizerConfig read_tokenizer_config(std::string_view json, const std::string& path);

}  // namespace dstrain
