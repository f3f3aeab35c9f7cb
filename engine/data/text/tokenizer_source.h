#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "engine/data/text/encoder.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/recipe/recipe.h"

namespace dstrain::text {

/// tokenizer.json of data.tokenizer, else of the folder `model_weights`. Error{usage} or
/// Error{data} says where it was looked for.
[[nodiscard]] std::filesystem::path tokenizer_file(const DataConfig& data,
                                                   const std::string& model_weights);

/// That tokenizer; its files are read when it is opened, their hash at once. A sample is closed by
/// the end token of tokenizer_config.json, else by <|endoftext|> or </s>; a chat by <|im_end|>.
[[nodiscard]] EncoderSource tokenizer_source(const DataConfig& data,
                                             const std::string& model_weights);

}  // namespace dstrain::text
