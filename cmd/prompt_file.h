#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat/conversation.h"

namespace dstrain {

/// One prompt of a file; `id` is JSON text: what the line has as `id`, else the number of the line.
struct FilePrompt {
  std::string id;
  std::string text;  ///< of a chat: the line
  std::optional<chat::Conversation> chat = {};
};

/// JSONL where the first line begins with a brace, or one list: objects with `prompt` (a text or
/// messages), `messages` or `conversations` (chat::ChatFormat) and perhaps `id`; else each line is a
/// prompt. Error{data} names the line.
[[nodiscard]] std::vector<FilePrompt> read_prompts(const std::filesystem::path& file);

}  // namespace dstrain
