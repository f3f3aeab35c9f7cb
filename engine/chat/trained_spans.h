#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/conversation.h"
#include "engine/chat/template.h"

namespace dstrain::chat {

/// Bytes [begin, end) of a rendered chat that the model has to say.
struct TrainedSpan {
  std::size_t begin;
  std::size_t end;
  std::int32_t message;  ///< the assistant's turn
  bool stops = false;    ///< whether it ends with a special token
  bool operator==(const TrainedSpan&) const = default;
};

struct RenderedChat {
  Text text;
  std::vector<TrainedSpan> spans;
};

enum class TrainedTurns : std::uint8_t { all, last };

/// Renders chats with a template and says what of them is trained.
///
/// Where the template has marks ({% generation %}), these. Else the turn of an assistant's message:
/// from the end of the prompt that add_generation_prompt gives, or from the message's first
/// character where that prompt is no beginning of the chat (before a tool call: from where the two
/// differ); to the last special token of what
/// follows an answer within a chat as well as at its end, or the first one where both differ.
class ChatRenderer {
 public:
  /// `special_tokens`: texts of the tokenizer's special tokens. `variables`: bos_token and the
  /// like, and arguments of the template.
  ChatRenderer(ChatTemplate chat_template, std::vector<std::string> special_tokens,
               std::vector<std::pair<std::string, Value>> variables, Day date = {},
               const RenderLimits& limits = {});

  /// Error{data}: the template's refusal. Tool calls are given with their arguments as objects, and
  /// once more as text where the template refuses that.
  [[nodiscard]] RenderedChat render(const Conversation& chat, TrainedTurns turns) const;
  /// The chat up to where the model is to answer.
  [[nodiscard]] Text prompt(const Conversation& chat) const;

  /// Special tokens that end an assistant's turn: one, or one within a chat and one at its end. A
  /// model that was trained on such chats stops with them.
  [[nodiscard]] const std::vector<std::string>& stop_tokens() const { return stop_tokens_; }

 private:
  struct Turns;
  struct Found {
    std::size_t begin, end;  ///< begin is npos where there is none
  };

  /// The first `count` messages.
  [[nodiscard]] Text text_of_chat(const Conversation& chat, std::size_t count, bool prompt) const;
  void learn_end();
  void learn_call();
  [[nodiscard]] Found first_special(std::string_view text) const;
  [[nodiscard]] Found last_special(std::string_view text) const;
  [[nodiscard]] RenderedChat rendered(const Conversation& chat, TrainedTurns turns) const;
  [[nodiscard]] std::vector<TrainedSpan> marked_spans(const Text& text,
                                                      const Conversation& chat) const;
  [[nodiscard]] bool leaves_turn(std::string_view gap, std::string_view behind) const;
  [[nodiscard]] std::size_t end_of_turn(std::string_view follows, bool silent) const;
  [[nodiscard]] static Turns turns_of(const Text& text, std::size_t messages);
  [[nodiscard]] std::size_t opening_end(const Conversation& chat, std::size_t index,
                                        std::size_t said, bool calls_first, Turns& turns) const;
  void add_turn(const Conversation& chat, std::size_t index, Turns& turns,
                std::vector<TrainedSpan>& spans) const;

  ChatTemplate template_;
  std::vector<std::string> special_tokens_;
  std::vector<std::pair<std::string, Value>> variables_;
  Day date_;
  RenderLimits limits_;
  std::string end_;      ///< what follows every answer, up to its last special token
  std::string opening_;  ///< of an assistant's turn, from its first special token on
  std::string head_;     ///< that token
  std::vector<std::string> stop_tokens_;
  /// How often a tool call names its tool; once more is the tool's answer.
  std::ptrdiff_t names_in_call_ = 1;
};

}  // namespace dstrain::chat
