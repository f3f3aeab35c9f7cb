#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/conversation.h"
#include "engine/chat/trained_spans.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace dstrain {

/// A tokenizer's chat template with the tokens that it uses.
class ChatForm {
 public:
  /// Nothing where the tokenizer has no template. Error{data}: the template is not supported;
  /// `name` is what it is called.
  [[nodiscard]] static std::optional<ChatForm> of(const Tokenizer& tokenizer, std::string name);

  /// The chat up to where the model answers. Error{data}: the template's refusal.
  [[nodiscard]] std::string prompt(const chat::Conversation& chat) const;
  /// What closes an answer.
  [[nodiscard]] const std::vector<std::int64_t>& stop_tokens() const { return stop_tokens_; }

 private:
  explicit ChatForm(chat::ChatRenderer renderer) : renderer_(std::move(renderer)) {}

  chat::ChatRenderer renderer_;
  std::vector<std::int64_t> stop_tokens_;
};

/// One question; an empty `system` leaves that to the template.
[[nodiscard]] chat::Conversation question(std::string_view system, std::string_view user);
/// One JSON object with messages, in any form of chat::ChatFormat; `where` is its place for errors.
[[nodiscard]] chat::Conversation chat_of_json(const std::string& json, const std::string& where);

}  // namespace dstrain
