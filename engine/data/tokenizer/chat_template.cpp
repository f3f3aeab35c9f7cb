#include "engine/data/tokenizer/chat_template.h"

#include <vector>

namespace dstrain {

namespace {

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>\n";

void append(std::string& text, std::string_view role, std::string_view content) {
  text.append(kStart).append(role).append("\n").append(content).append(kEnd);
}

}  // namespace

std::string qwen_chat(std::span<const ChatMessage> messages, bool generation_prompt,
                      std::string_view default_system) {
  std::string text;
  if (messages.empty() || messages[0].role != "system") append(text, "system", default_system);
  for (const ChatMessage& message : messages) append(text, message.role, message.content);
  if (generation_prompt) text.append(kStart).append("assistant\n");
  return text;
}

std::string qwen_chat_prompt(const std::optional<std::string>& system, std::string_view user) {
  std::vector<ChatMessage> messages;
  if (system) messages.push_back({.role = "system", .content = *system});
  messages.push_back({.role = "user", .content = std::string(user)});
  return qwen_chat(messages, true);
}

std::string qwen_chat_answer(std::string_view answer) { return std::string(answer).append(kEnd); }

std::string qwen_default_system(std::string_view chat_template) {
  // The Jinja text holds '<|im_start|>system\nDEFAULT<|im_end|>\n' in single quotes, with \n and \'
  // spelled out.
  constexpr std::string_view kOpening = "'<|im_start|>system\\n";
  for (auto at = chat_template.find(kOpening); at != std::string_view::npos;
       at = chat_template.find(kOpening, at + 1)) {
    std::string message;
    for (auto i = at + kOpening.size(); i < chat_template.size() && chat_template[i] != '\''; ++i) {
      if (chat_template[i] == '\\' && i + 1 < chat_template.size()) {
        ++i;
        message += chat_template[i] == 'n' ? '\n' : chat_template[i];
      } else {
        message += chat_template[i];
      }
    }
    const auto end = message.find("<|im_end|>");
    if (end != std::string::npos) return message.substr(0, end);
  }
  return std::string(kQwenSystemMessage);
}

}  // namespace dstrain
