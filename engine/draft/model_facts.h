#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/hub/repository.h"
#include "engine/recipe/families.h"

namespace dstrain::draft {

/// What a person calls a model by; nothing has been looked at.
struct ModelWord {
  std::string word = {};                      ///< as given
  std::filesystem::path folder = {};          ///< in the Hugging Face layout; empty: none is named
  std::optional<hub::HubName> hub = {};       ///< where its weights are
  const PublishedModel* published = nullptr;  ///< null: its config.json says what it is
};
/// A folder, "hf://ORG/NAME", "ORG/NAME" or a published size; a size that has a name of the Hub
/// means the weights there. Error{usage} for what is none of these, with the nearest.
[[nodiscard]] ModelWord read_model_word(const std::string& word);

/// A model as a recipe names it.
struct ModelFacts {
  std::string called = {};              ///< for people and file names: "Qwen2.5-0.5B"
  std::string name = {};                ///< model.name; empty: config.json says it
  std::string weights = {};             ///< model.weights; empty: random
  std::filesystem::path files = {};     ///< where its files lie here; empty: nowhere
  const ModelFamily* family = nullptr;  ///< never null
  std::int64_t positions = 0;  ///< tokens that it was trained with; 0: not known, or no end

  [[nodiscard]] bool takes_text() const { return family->modality == Modality::text; }
  [[nodiscard]] bool takes_clips() const { return family->name == "cnn_lstm"; }
  [[nodiscard]] bool takes_adapters() const { return !family->by_name && !weights.empty(); }
};
/// What is known of a model. `files`: the folder that is named, or what is here of its repository;
/// empty: nothing is. Error{data} or Error{usage} for what is no model, such as an adapter or a
/// run, with what would do.
[[nodiscard]] ModelFacts look_at_model(const ModelWord& word, const std::filesystem::path& files);

}  // namespace dstrain::draft
