#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/value.h"

namespace dstrain::chat {

enum class Role : std::uint8_t { system, developer, user, assistant, tool };

struct Message {
  Role role;
  bool trained = true;  ///< unless its record says `weight: 0` or `train: false`
  Value value;          ///< the dict that a template sees
};

/// One record of chats: messages for a template, or two texts without one.
struct Conversation {
  std::vector<Message> messages;
  Value tools = Value::none();
  std::string prompt;  ///< where there are no messages
  std::string completion;

  [[nodiscard]] bool is_plain() const { return messages.empty(); }
};

/// How records spell a conversation.
enum class ChatFormat : std::uint8_t {
  messages,    ///< `messages`: role, content, tool_calls ..; `tools` beside it
  sharegpt,    ///< `conversations`: from, value
  alpaca,      ///< instruction, input, output; maybe system and history
  completion,  ///< prompt, and completion or response: two texts, or two lists of messages
};

/// Told by the fields. Error{data} names the fields that there are where it is none of them.
[[nodiscard]] ChatFormat chat_format(const Value& record);

/// Error{data} says what is wrong with which message. Arguments of tool calls that are text become
/// the JSON that they hold.
[[nodiscard]] Conversation read_chat(const Value& record, ChatFormat format);

/// The first `count` messages.
[[nodiscard]] Conversation beginning_of(const Conversation& chat, std::size_t count);
/// The chat without `gone` messages from `first` on; those behind know their new places.
[[nodiscard]] Conversation without_messages(const Conversation& chat, std::size_t first,
                                            std::size_t gone);

/// The messages as a template wants them: a list of dicts, the first `count` of them.
[[nodiscard]] Value messages_of(const Conversation& chat, std::size_t count);
[[nodiscard]] bool has_tool_calls(const Conversation& chat);
/// The same chat with the arguments of its tool calls as JSON text, which some templates add to
/// text.
[[nodiscard]] Conversation with_text_arguments(const Conversation& chat);

}  // namespace dstrain::chat
