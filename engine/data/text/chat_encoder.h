#pragma once

#include <filesystem>
#include <memory>

#include "engine/data/text/encoder.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/recipe/recipe.h"

namespace dstrain::text {

/// How `encoder` encodes records of chats: by data.template, else by the tokenizer's own template.
/// Special tokens come from the template alone; in what messages say they are text. Tokens are cut
/// where an answer begins and ends, as it is generated. `file` is the tokenizer's, for messages.
/// Error{data} or Error{usage} where a template cannot be used.
void make_chat_encoder(Encoder& encoder, const DataConfig& data,
                       const std::shared_ptr<const Tokenizer>& tokenizer,
                       const std::filesystem::path& file);

/// What template, its arguments and how chats become samples add to the key of tokens.
[[nodiscard]] std::string chat_key(const DataConfig& data, const std::filesystem::path& tokenizer,
                                   const std::filesystem::path& memory);

/// Writes into the folder of an exported model what its chats need: chat_template.jinja where
/// data.template says it, and in generation_config.json the tokens that close an answer beside
/// those that are there.
void write_chat_files(const DataConfig& data, const std::string& model_weights,
                      const std::filesystem::path& folder);

}  // namespace dstrain::text
