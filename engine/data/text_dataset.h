#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/data/text/progress_sink.h"
#include "engine/data/text/record.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// Opens the split that `data` names: squad, metamathqa, jsonl from the cache of tokenised data,
/// which is built first where needed; random needs no files. The tokenizer is data.tokenizer, else
/// `model_weights` (the model's folder). Rows are packed by `seed`. `vocab_size` is the model's: a
/// token outside it is an Error{data}. `progress` (may be null) gets how far building is, what was
/// cut or left out, and how much of the rows is padding. Collective in effect: ranks that open the
/// same data build it once. A mixture is all of its members (mixed_sets.h).
[[nodiscard]] std::unique_ptr<TextDataset> open_text(const DataConfig& data, Split split,
                                                     const std::string& model_weights,
                                                     std::int64_t vocab_size, std::int64_t seed,
                                                     ProgressSink* progress);

/// A sample of the test split as a model is asked.
struct TextQuestion {
  std::vector<std::int64_t> prompt_tokens;
  std::string prompt;                ///< in words, special tokens included
  std::string response;              ///< what training wants the model to say
  std::vector<std::string> answers;  ///< that are right, one at least; an empty one: there is none
  text::AnswerRule rule = text::AnswerRule::words;
  std::int64_t end_token = 0;  ///< closes the response
};
/// The first `count` of the test split (0: all), of which no prompt is cut; none of random data; of
/// a mixture a like number of each member.
[[nodiscard]] std::vector<TextQuestion> test_questions(const DataConfig& data,
                                                       const std::string& model_weights,
                                                       std::int64_t count, ProgressSink* progress);

/// A sample as training sees it.
struct ShownSample {
  struct Piece {
    std::string text;
    bool trained = false;
  };
  std::string record;  ///< "FILE: record 17"
  std::vector<Piece> pieces;
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> trained;  ///< 1 for each token whose prediction is
  std::int64_t cut = 0;               ///< tokens beyond data.sequence
};
/// The first `count` samples of a split; of each member of a mixture.
[[nodiscard]] std::vector<ShownSample> show_samples(const DataConfig& data, Split split,
                                                    const std::string& model_weights, int count,
                                                    ProgressSink* progress);

/// What is known of a split once it is tokenised. Lengths are those before cutting; a sample of
/// data.pairs is a pair.
struct TextStatistics {
  std::int64_t records = 0;   ///< in the files that hold the split
  std::int64_t samples = 0;   ///< of the split that are used; as many rows without packing
  std::int64_t cut = 0;       ///< of them, cut to data.sequence
  std::int64_t left_out = 0;  ///< records that cannot be used, and samples that are too long
  std::int64_t tokens = 0;    ///< of the samples, cut
  std::int64_t targets = 0;   ///< of these, predicted in training
  double mean = 0;            ///< tokens per sample
  std::int64_t p50 = 0, p95 = 0, longest = 0;
  std::int64_t packed_rows = 0;  ///< with data.packing; 0 of pairs
  int sequence = 0;
  /// Share of a row's places without a token, and the share with one when packed.
  [[nodiscard]] double padding_share() const;
  [[nodiscard]] double packed_share() const;
};
/// Not of a mixture, but of each member.
[[nodiscard]] TextStatistics text_statistics(const DataConfig& data, Split split,
                                             const std::string& model_weights, std::int64_t seed,
                                             ProgressSink* progress);

}  // namespace dstrain
