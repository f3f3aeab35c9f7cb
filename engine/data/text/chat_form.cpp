#include "engine/data/text/chat_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/day.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/chat/json_reader.h"

namespace dstrain {

namespace {

constexpr std::string_view kChatMlTemplate =
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{%- endif %}";
constexpr std::uint64_t kMaxTemplateBytes = std::uint64_t{1} << 20;

/// "NAME=VALUE" of data.template_args.
std::pair<std::string, chat::Value> argument_of(const std::string& text) {
  const auto at = text.find('=');
  if (at == std::string::npos || at == 0)
    throw Error(ErrorKind::usage, fmt::format("data.template_args: '{}' is no NAME=VALUE", text),
                "write such as enable_thinking=false");
  const std::string value = text.substr(at + 1);
  try {
    return {text.substr(0, at),
            chat::read_json_value(value, [](std::size_t) { return std::string(); })};
  } catch (const Error&) {
    return {text.substr(0, at), chat::Value::text(value)};
  }
}

/// data.chat_date; nothing where it is empty.
std::optional<Day> day_of(const DataConfig& data) {
  if (data.chat_date.empty()) return std::nullopt;
  const std::optional<Day> day = parse_day(data.chat_date);
  if (!day)
    throw Error(ErrorKind::usage, fmt::format("data.chat_date: '{}' is no day", data.chat_date),
                "write a day, such as 26 Jul 2024 or 2024-07-26");
  return day;
}

}  // namespace

std::optional<std::string> named_template(const DataConfig& data) {
  if (data.template_file.empty()) return std::nullopt;
  if (data.template_file == kChatMl) return std::string(kChatMlTemplate);
  return read_file(data.template_file, kMaxTemplateBytes);
}

std::optional<ChatForm> ChatForm::of(const DataConfig& data, const Tokenizer& tokenizer,
                                     const std::filesystem::path& file) {
  std::optional<std::string> text = named_template(data);
  std::string name = data.template_file;
  if (!text) {
    if (tokenizer.chat_template().empty()) return std::nullopt;
    text = tokenizer.chat_template();
    name = file.string() + ": its chat template";
  }
  for (const char* token : {"<|im_start|>", "<|im_end|>"})
    if (data.template_file == kChatMl && !tokenizer.token_id(token))
      throw Error(ErrorKind::usage,
                  fmt::format("data.template: chatml: {} has no token {}", file.string(), token),
                  "name a Jinja file whose turns end with a token that the tokenizer has");
  std::vector<std::pair<std::string, chat::Value>> variables;
  for (const auto& [key, id] :
       {std::pair{"bos_token", tokenizer.bos()}, std::pair{"eos_token", tokenizer.eos()},
        std::pair{"pad_token", tokenizer.pad()}}) {
    if (!id) continue;
    const std::vector<std::int32_t> one = {*id};
    variables.emplace_back(key, chat::Value::text(tokenizer.decode(one, false)));
  }
  for (const std::string& argument : data.template_args) variables.push_back(argument_of(argument));
  const std::optional<Day> day = day_of(data);
  const auto is_date = [](const auto& variable) { return variable.first == "date_string"; };
  if (day && std::ranges::none_of(variables, is_date))
    variables.emplace_back("date_string", chat::Value::text(format_day(*day)));
  ChatForm form(chat::ChatRenderer(chat::ChatTemplate::parse(*text, std::move(name)),
                                   tokenizer.special_tokens(), std::move(variables),
                                   day.value_or(Day())));
  for (const std::string& token : form.renderer_.stop_tokens()) {
    if (const auto id = tokenizer.token_id(token)) form.stop_tokens_.push_back(*id);
  }
  return form;
}

std::vector<std::int64_t> ChatForm::prompt(const Tokenizer& tokenizer,
                                           const chat::Conversation& chat) const {
  const chat::Text text = renderer_.prompt(chat);
  std::vector<std::int32_t> ids;
  tokenizer.encode_around(text.bytes(), plain_ranges(text, 0, text.size()), TextStart::first, ids);
  return {ids.begin(), ids.end()};
}

chat::RenderedChat ChatForm::rendered(const chat::Conversation& chat,
                                      chat::TrainedTurns turns) const {
  return renderer_.render(chat, turns);
}

std::vector<ByteRange> plain_ranges(const chat::Text& text, std::size_t begin, std::size_t end) {
  std::vector<ByteRange> ranges;
  std::size_t at = 0;
  for (const chat::Text::Run& run : text.runs()) {
    const ByteRange own{.begin = std::max(at, begin), .end = std::min(run.end, end)};
    at = run.end;
    const bool written =
        run.source.origin == chat::Origin::written ||
        (run.source.origin == chat::Origin::message && run.source.field == chat::Field::role);
    if (written || own.begin >= own.end) continue;
    if (!ranges.empty() && ranges.back().end == own.begin - begin)
      ranges.back().end = own.end - begin;
    else
      ranges.push_back({.begin = own.begin - begin, .end = own.end - begin});
  }
  return ranges;
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
