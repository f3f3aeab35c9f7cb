#pragma once

#include <string>

#include "engine/draft/data_facts.h"
#include "engine/draft/model_facts.h"

namespace dstrain {

/// A model by its folder or name. Its config.json and, for text, its tokenizer come from the Hub;
/// where that gives none, a note says so and a published size does without.
[[nodiscard]] draft::ModelFacts found_model(const std::string& word);
/// Where the tokenizer lies that data.tokenizer would name so.
[[nodiscard]] std::string found_tokenizer(const std::string& word);
/// Data by its place or name, of the Hub all that a run would fetch.
[[nodiscard]] draft::DataFacts found_data(const std::string& word,
                                          const draft::LookOptions& options);

}  // namespace dstrain
