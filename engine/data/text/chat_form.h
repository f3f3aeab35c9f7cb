#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/conversation.h"
#include "engine/chat/trained_spans.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// A chat template with the tokens that it uses.
class ChatForm {
 public:
  /// The template that `data` names, else the tokenizer's own; nothing where there is none. `file`
  /// is the tokenizer's. Error{data}: the template is not supported; Error{usage}: data.template,
  /// data.template_args or data.chat_date is no such thing.
  [[nodiscard]] static std::optional<ChatForm> of(const DataConfig& data,
                                                  const Tokenizer& tokenizer,
                                                  const std::filesystem::path& file);

  /// Tokens of the chat up to where the model answers; what messages say holds no special ones.
  /// Error{data}: the template's refusal.
  [[nodiscard]] std::vector<std::int64_t> prompt(const Tokenizer& tokenizer,
                                                 const chat::Conversation& chat) const;
  /// The chat and what of it is trained.
  [[nodiscard]] chat::RenderedChat rendered(const chat::Conversation& chat,
                                            chat::TrainedTurns turns) const;
  /// What closes an answer.
  [[nodiscard]] const std::vector<std::int64_t>& stop_tokens() const { return stop_tokens_; }

 private:
  explicit ChatForm(chat::ChatRenderer renderer) : renderer_(std::move(renderer)) {}

  chat::ChatRenderer renderer_;
  std::vector<std::int64_t> stop_tokens_;
};

/// The Jinja text that data.template names; nothing where it names none.
[[nodiscard]] std::optional<std::string> named_template(const DataConfig& data);
/// data.template for the form of OpenAI's ChatML, which base models such as Qwen's have tokens for.
inline constexpr std::string_view kChatMl = "chatml";

/// Bytes of a rendered chat in which special tokens are text: what messages, tools and documents
/// say, roles left out.
[[nodiscard]] std::vector<ByteRange> plain_ranges(const chat::Text& text, std::size_t begin,
                                                  std::size_t end);

/// One question; an empty `system` leaves that to the template.
[[nodiscard]] chat::Conversation question(std::string_view system, std::string_view user);
/// One JSON object with messages, in any form of chat::ChatFormat; `where` is its place for errors.
[[nodiscard]] chat::Conversation chat_of_json(const std::string& json, const std::string& where);

}  // namespace dstrain
