#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/draft/data_facts.h"
#include "engine/draft/model_facts.h"
#include "engine/draft/text_lengths.h"

/// A recipe made of what model and data are.
namespace dstrain::draft {

/// What was found.
struct Facts {
  ModelFacts model = {};
  DataFacts data = {};
  TextLengths lengths = {};        ///< of text; `looked` 0: not measured
  std::string tokenizer = {};      ///< data.tokenizer; empty: that of the model
  std::string chat_template = {};  ///< data.template; empty: the tokenizer's own
  std::string why_template = {};
};

/// What was decided, by a person or by the plan of a step.
struct Choices {
  bool adapters = false;  ///< LoRA
  std::string why_adapters = {};
  int ranks = 1;
  int epochs = 0;  ///< 0: by the number of samples
  int micro = 1;
  std::string why_micro = {};
  bool recompute = false;       ///< memory.recompute: auto
  std::int64_t parameters = 0;  ///< of the model; 0: not known
};

/// A line of the recipe: key, value as YAML, and why it has it.
struct DraftLine {
  std::string key = {};  ///< "data.sequence"
  std::string value = {};
  std::string reason = {};
};

/// The global batch, of samples or of rows of text.
[[nodiscard]] int global_batch(const Facts& facts);
/// Passes over the data that are usual for so many samples.
[[nodiscard]] int usual_epochs(const Facts& facts);
/// The recipe, section by section.
[[nodiscard]] std::vector<DraftLine> draft_recipe(const Facts& facts, const Choices& choices);

/// The recipe as a file: a line for each, with its reason as a comment.
[[nodiscard]] std::string draft_yaml(const std::vector<DraftLine>& lines, const std::string& title);
/// A text as the value of a key.
[[nodiscard]] std::string yaml_text(const std::string& text);

}  // namespace dstrain::draft
