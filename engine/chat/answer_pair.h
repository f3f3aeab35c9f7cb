#pragma once

#include "engine/chat/conversation.h"

namespace dstrain::chat {

/// Two answers to one prompt. Of messages, those of the prompt are not trained.
struct AnswerPair {
  Conversation chosen;
  Conversation rejected;
};

/// Whether a record has the fields `chosen` and `rejected`.
[[nodiscard]] bool is_pair(const Value& record);

/// Answers are two texts, or two lists of messages. Without `prompt`, and where it is a text beside
/// lists, it is what both begin with, as in TRL's extract_prompt; a list of messages may stand
/// before both answers once more. Error{data}: prompts that differ, an empty answer, answers that
/// are equal, images.
[[nodiscard]] AnswerPair read_pair(const Value& record);

}  // namespace dstrain::chat
