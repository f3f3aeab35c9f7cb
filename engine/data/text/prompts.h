#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dstrain::text {

/// The answer of a SQuAD v2 question that its context does not answer.
inline constexpr std::string_view kUnanswerable = "unanswerable";

/// "Question: {question} Context: {context} Answer:". The space before the answer belongs to the
/// response, where byte-level BPE joins it to the first word.
[[nodiscard]] std::string squad_prompt(std::string_view question, std::string_view context);
[[nodiscard]] std::string squad_response(std::string_view answer);

/// `answer` and <|im_end|>, where a model of the Qwen2.5 family stops.
[[nodiscard]] std::string chat_response(std::string_view answer);

/// Why `answer` does not stand in `context` at code point `start`; empty when it does. Both are
/// valid UTF-8.
[[nodiscard]] std::string check_answer(std::string_view context, std::string_view answer,
                                       std::int64_t start);

/// No text but white space.
[[nodiscard]] bool is_blank(std::string_view text);

}  // namespace dstrain::text
