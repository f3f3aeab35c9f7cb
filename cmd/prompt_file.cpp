#include "cmd/prompt_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/data/text/chat_form.h"

namespace dstrain {
namespace {

FilePrompt prompt_of(const std::string& line, const std::string& where, int number) {
  const nlohmann::json json = parse_json(line, where);
  const auto prompt = json.is_object() ? json.find("prompt") : json.end();
  const bool is_chat =
      json.is_object() && (json.contains("messages") || json.contains("conversations"));
  if (!is_chat && (!json.is_object() || prompt == json.end() || !prompt->is_string()))
    throw Error(ErrorKind::data,
                fmt::format("{}: no prompt, a text, in {}", where, shown_json(json)),
                R"(lines are objects as {"prompt": "..", "id": 7} or {"messages": [..]})");
  const auto id = json.find("id");
  FilePrompt found{.id = id == json.end() ? std::to_string(number) : json_text(*id), .text = line};
  if (is_chat) {
    found.chat = chat_of_json(line, where);
  } else {
    found.text = prompt->get<std::string>();
  }
  return found;
}

}  // namespace

std::vector<FilePrompt> read_prompts(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  const auto first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && text[first] == '{';
  std::vector<FilePrompt> prompts;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    prompts.push_back(is_json ? prompt_of(line, fmt::format("{}:{}", file.string(), number), number)
                              : FilePrompt{std::to_string(number), line});
  }
  if (prompts.empty())
    throw Error(ErrorKind::data, file.string() + " has no prompt", "a text in each line, or JSONL");
  return prompts;
}

}  // namespace dstrain
