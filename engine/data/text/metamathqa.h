#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "engine/data/text/record.h"

namespace dstrain::text {

/// MetaMathQA-395K.json: an array of {query, response, type, original_question}; or the same as
/// parquet. The query becomes Qwen2.5's chat prompt after the message `system`, the response
/// ends with <|im_end|>; samples that rephrase one original question are one group. Answers to a
/// type GSM_* are numbers, to others expressions. Yu et al. 2023, arXiv:2309.12284.
void read_metamathqa_json(const std::filesystem::path& file, const std::string& system,
                          const RecordSink& sink);
void read_metamathqa_parquet(const std::filesystem::path& file, const std::string& system,
                             const RecordSink& sink);

/// The rule of a record's type; `type` is empty where it has none.
[[nodiscard]] inline AnswerRule metamathqa_rule(std::string_view type) {
  return type.starts_with("GSM") ? AnswerRule::gsm : AnswerRule::math;
}

}  // namespace dstrain::text
