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
  std::string text;
};

/// JSONL, objects with `prompt` and perhaps `id`, where the first line begins with a brace; else
/// each line is a prompt. Error{data} names the line.
[[nodiscard]] std::vector<FilePrompt> read_prompts(const std::filesystem::path& file);

}  // namespace dstrain
