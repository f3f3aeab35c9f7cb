#include "cmd/prompt_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/data/text/chat_form.h"

namespace dstrain {
namespace {

constexpr const char* kForms =
    R"(prompts are objects as {"prompt": "..", "id": 7} or {"messages": [..]})";

/// `line` is the text of `json`.
FilePrompt prompt_of(const nlohmann::json& json, const std::string& line, const std::string& where,
                     int number) {
  const auto prompt = json.is_object() ? json.find("prompt") : json.end();
  const bool is_chat =
      json.is_object() && (json.contains("messages") || json.contains("conversations"));
  const bool is_list = json.is_object() && prompt != json.end() && prompt->is_array();
  if (!is_chat && !is_list && (!json.is_object() || prompt == json.end() || !prompt->is_string()))
    throw Error(ErrorKind::data,
                fmt::format("{}: no prompt, a text, in {}", where, shown_json(json)), kForms);
  const auto id = json.find("id");
  FilePrompt found{.id = id == json.end() ? std::to_string(number) : json_text(*id), .text = line};
  if (is_chat) {
    found.chat = chat_of_json(line, where);
  } else if (is_list) {
    found.chat = chat_of_json(json_text(nlohmann::json{{"messages", *prompt}}), where);
  } else {
    found.text = prompt->get<std::string>();
  }
  return found;
}

/// A prompt for each entry of one list of objects; nothing where the file is none.
std::vector<FilePrompt> prompts_of_list(const std::string& text, const std::string& file) {
  std::vector<FilePrompt> prompts;
  nlohmann::json json;
  try {
    json = parse_json(text, file);
  } catch (const Error&) {
    return prompts;  // lines of text, one of which begins so
  }
  if (!std::ranges::all_of(json, [](const nlohmann::json& one) { return one.is_object(); }))
    return prompts;
  for (const nlohmann::json& one : json) {
    const int number = static_cast<int>(prompts.size()) + 1;
    prompts.push_back(
        prompt_of(one, json_text(one), fmt::format("{}: entry {}", file, number), number));
  }
  return prompts;
}

/// Lines of objects may have been written over several lines.
[[noreturn]] void fail_line(const Error& error) {
  throw Error(error.kind(), error.what(),
              kForms + std::string(", each in one line, or a list of them"));
}

}  // namespace

std::vector<FilePrompt> read_prompts(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  const auto first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && text[first] == '{';
  std::vector<FilePrompt> prompts;
  if (first != std::string::npos && text[first] == '[')
    if (prompts = prompts_of_list(text, file.string()); !prompts.empty()) return prompts;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    if (!is_json) {
      prompts.push_back({std::to_string(number), line});
      continue;
    }
    const std::string where = fmt::format("{}:{}", file.string(), number);
    const auto json = [&] {
      try {
        return parse_json(line, where);
      } catch (const Error& error) {
        fail_line(error);
      }
    }();
    prompts.push_back(prompt_of(json, line, where, number));
  }
  if (prompts.empty())
    throw Error(ErrorKind::data, file.string() + " has no prompt", "a text in each line, or JSONL");
  return prompts;
}

}  // namespace dstrain
