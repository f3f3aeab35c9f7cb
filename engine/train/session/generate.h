#pragma once

#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/data/text_dataset.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/infer/answer_figures.h"
#include "engine/mesh/zigzag.h"
#include "engine/train/execute/executor.h"

namespace dstrain {

struct GenerateOptions {
  c10::Device device{c10::kCPU};
  int speaker = 0;  ///< index in the group of the rank whose choice holds for all; it has the head
  std::int64_t micro_batch = 0;  ///< samples of one pass
  std::int64_t sequence = 0;     ///< tokens that the model takes
  Zigzag own = {};               ///< of these, what this rank has
  int max_tokens = 0;            ///< of an answer
  bool rehearse = false;         ///< before the first pass
};

struct GeneratedAnswer {
  std::string prompt;
  std::string expected;
  std::string generated;
  AnswerFigures figures;
};
/// Means over all of them.
[[nodiscard]] AnswerFigures mean_figures(const std::vector<GeneratedAnswer>& answers);

/// Takes out the samples whose prompts fill `sequence`; says how many these are, and how many
/// answers end before `max_tokens`. Empty where all have their room.
[[nodiscard]] std::string keep_answerable(std::vector<TextQuestion>& samples, std::int64_t sequence,
                                          int max_tokens);

/// A pass over padding: each rank then has what others have updated. Collective.
void pass_of_nothing(Executor& executor, const GenerateOptions& options);

/// Answers to `samples`, token by token, always the most likely one; each pass reads the whole
/// sequence. A prompt stands whole, with room behind it; an answer ends where the sequence ends.
/// Every rank of `ranks` makes the same
/// answers, since weights may be spread over them: collective.
[[nodiscard]] std::vector<GeneratedAnswer> generate(Executor& executor, Communicator& ranks,
                                                    const std::vector<TextQuestion>& samples,
                                                    const Tokenizer& tokenizer,
                                                    const GenerateOptions& options);

}  // namespace dstrain
