#include "engine/infer/chat_form.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/chat/json_reader.h"

namespace dstrain {

std::optional<ChatForm> ChatForm::of(const Tokenizer& tokenizer, std::string name) {
  if (tokenizer.chat_template().empty()) return std::nullopt;
  std::vector<std::pair<std::string, chat::Value>> variables;
  for (const auto& [key, id] :
       {std::pair{"bos_token", tokenizer.bos()}, std::pair{"eos_token", tokenizer.eos()},
        std::pair{"pad_token", tokenizer.pad()}}) {
    if (!id) continue;
    const std::vector<std::int32_t> one = {*id};
    variables.emplace_back(key, chat::Value::text(tokenizer.decode(one, false)));
  }
  ChatForm form(
      chat::ChatRenderer(chat::ChatTemplate::parse(tokenizer.chat_template(), std::move(name)),
                         tokenizer.special_tokens(), std::move(variables)));
  for (const std::string& token : form.renderer_.stop_tokens()) {
    if (const auto id = tokenizer.token_id(token)) form.stop_tokens_.push_back(*id);
  }
  return form;
}

std::string ChatForm::prompt(const chat::Conversation& chat) const {
  return renderer_.prompt(chat).bytes();
}

chat::Conversation question(std::string_view system, std::string_view user) {
  nlohmann::json messages = nlohmann::json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", user}});
  const nlohmann::json record = {{"messages", messages}};
  return chat_of_json(json_text(record), "the prompt");
}

chat::Conversation chat_of_json(const std::string& json, const std::string& where) {
  try {
    const chat::Value record = chat::read_json_value(json, line_and_column(json, where));
    return chat::read_chat(record, chat::chat_format(record));
  } catch (const Error& error) {
    throw Error(ErrorKind::data, fmt::format("{}: {}", where, error.what()), error.hint());
  }
}

}  // namespace dstrain
