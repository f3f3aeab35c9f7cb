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

/// A chat template with the tokens that it uses.
class ChatForm {
 public:
  /// The tokenizer's own; nothing where it has none. Error{data}: the template is not supported;
  /// `name` is what it is called.
  [[nodiscard]] static std::optional<ChatForm> of(const Tokenizer& tokenizer, std::string name);
  /// The Jinja `text`. `arguments`: "NAME=VALUE" for it, a VALUE that is JSON as such. Error{usage}
  /// for other arguments.
  [[nodiscard]] static ChatForm of_text(const Tokenizer& tokenizer, std::string_view text,
                                        std::string name,
                                        const std::vector<std::string>& arguments = {});

  /// Tokens of the chat up to where the model answers; what messages say holds no special ones.
  /// Error{data}: the template's refusal.
  [[nodiscard]] std::vector<std::int64_t> prompt(const Tokenizer& tokenizer,
                                                 const chat::Conversation& chat) const;
  /// The chat and what of it is trained: all answers.
  [[nodiscard]] chat::RenderedChat rendered(const chat::Conversation& chat) const;
  /// What closes an answer.
  [[nodiscard]] const std::vector<std::int64_t>& stop_tokens() const { return stop_tokens_; }

 private:
  explicit ChatForm(chat::ChatRenderer renderer) : renderer_(std::move(renderer)) {}

  chat::ChatRenderer renderer_;
  std::vector<std::int64_t> stop_tokens_;
};

/// Bytes of a rendered chat in which special tokens are text: what messages, tools and documents
/// say, roles left out.
[[nodiscard]] std::vector<ByteRange> plain_ranges(const chat::Text& text, std::size_t begin,
                                                  std::size_t end);

/// One question; an empty `system` leaves that to the template.
[[nodiscard]] chat::Conversation question(std::string_view system, std::string_view user);
/// One JSON object with messages, in any form of chat::ChatFormat; `where` is its place for errors.
[[nodiscard]] chat::Conversation chat_of_json(const std::string& json, const std::string& where);

}  // namespace dstrain
