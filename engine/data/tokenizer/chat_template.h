#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace dstrain {

/// One turn of a conversation.
struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

/// What Qwen2.5's instruction models take for the system message where a conversation has none.
inline constexpr std::string_view kQwenSystemMessage =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

/// A conversation as the chat template of Qwen2.5 writes it, without tools:
/// `<|im_start|>role\ncontent<|im_end|>\n` for each message, first of all the system message;
/// `generation_prompt` adds `<|im_start|>assistant\n`, after which the model answers.
/// https://huggingface.co/Qwen/Qwen2.5-7B-Instruct, tokenizer_config.json, chat_template.
[[nodiscard]] std::string qwen_chat(std::span<const ChatMessage> messages, bool generation_prompt,
                                    std::string_view default_system = kQwenSystemMessage);

/// One question, up to where the answer begins. Without `system` the default stands there.
[[nodiscard]] std::string qwen_chat_prompt(const std::optional<std::string>& system,
                                           std::string_view user);

/// What follows the prompt when this is the answer.
[[nodiscard]] std::string qwen_chat_answer(std::string_view answer);

/// The default system message that a chat template of the Qwen family names: base models,
/// Qwen2.5-Math and the instruction models differ. kQwenSystemMessage where it names none.
[[nodiscard]] std::string qwen_default_system(std::string_view chat_template);

}  // namespace dstrain
