#include "engine/data/text/chat_encoder.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/chat/json_reader.h"
#include "engine/data/text/chat_form.h"
#include "engine/data/text/file_stamp.h"
#include "engine/data/text/hash.h"
#include "engine/data/text/tokenizer_source.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;

/// data.template for the form of OpenAI's ChatML, which base models such as Qwen's have tokens for.
constexpr std::string_view kChatMl = "chatml";
constexpr std::string_view kChatMlTemplate =
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{%- endif %}";
constexpr std::uint64_t kMaxTemplateBytes = std::uint64_t{1} << 20;

/// The Jinja text that data.template names; nothing where it names none.
std::optional<std::string> named_template(const DataConfig& data) {
  if (data.template_file.empty()) return std::nullopt;
  if (data.template_file == kChatMl) return std::string(kChatMlTemplate);
  return read_file(data.template_file, kMaxTemplateBytes);
}

std::optional<ChatForm> form_of(const DataConfig& data, const Tokenizer& tokenizer,
                                const fs::path& file) {
  if (const auto text = named_template(data)) {
    for (const char* token : {"<|im_start|>", "<|im_end|>"})
      if (data.template_file == kChatMl && !tokenizer.token_id(token))
        throw Error(ErrorKind::usage,
                    fmt::format("data.template: chatml: {} has no token {}", file.string(), token),
                    "name a Jinja file whose turns end with a token that the tokenizer has");
    return ChatForm::of_text(tokenizer, *text, data.template_file, data.template_args);
  }
  if (tokenizer.chat_template().empty()) return std::nullopt;
  return ChatForm::of_text(tokenizer, tokenizer.chat_template(),
                           file.string() + ": its chat template", data.template_args);
}

class ChatEncoder {
 public:
  ChatEncoder(std::shared_ptr<const Tokenizer> tokenizer, std::optional<ChatForm> form,
              const Encoder& encoder, std::string file)
      : tokenizer_(std::move(tokenizer)),
        form_(std::move(form)),
        begin_(encoder.begin),
        end_(encoder.end),
        file_(std::move(file)) {}

  std::string append(std::string_view json, std::vector<std::uint32_t>& tokens,
                     EncodedChat& encoded) const {
    chat::Conversation chat;
    chat::RenderedChat rendered;
    try {
      const auto place = [](std::size_t byte) { return fmt::format("byte {}", byte); };
      const chat::Value record = chat::read_json_value(json, place);
      chat = chat::read_chat(record, chat::chat_format(record));
      if (chat.is_plain()) return append_plain(chat, tokens, encoded);
      require_form();
      rendered = form_->rendered(chat);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::usage) throw;
      return error.what();
    }
    if (rendered.spans.empty()) return "no answer of it is trained";
    const std::string& text = rendered.text.bytes();
    const std::size_t first = tokens.size();
    std::size_t at = 0;
    for (const chat::TrainedSpan& span : rendered.spans) {
      add(rendered.text, at, span.begin, 0, tokens, encoded);
      encoded.last_answer = static_cast<std::uint32_t>(tokens.size() - first);
      add(rendered.text, span.begin, span.end, kTrainedMark, tokens, encoded);
      at = span.end;
    }
    add(rendered.text, at, text.size(), 0, tokens, encoded);
    if (tokens.size() > first + 1 && tokens[first] == tokens[first + 1] &&
        tokenizer_->bos() == static_cast<std::int32_t>(tokens[first]))
      return "it begins with two tokens of a beginning";
    encoded.group = hash64(std::string_view(text).substr(0, rendered.spans.front().begin));
    return "";
  }

 private:
  void require_form() const {
    if (form_) return;
    throw Error(ErrorKind::usage, fmt::format("{} has no chat template", file_),
                "name one in data.template: a Jinja file, or chatml");
  }

  std::string append_plain(const chat::Conversation& chat, std::vector<std::uint32_t>& tokens,
                           EncodedChat& encoded) const {
    const std::size_t first = tokens.size();
    tokens.insert(tokens.end(), begin_.begin(), begin_.end());
    for (const std::int32_t id : tokenizer_->encode(chat.prompt))
      tokens.push_back(static_cast<std::uint32_t>(id));
    encoded.last_answer = static_cast<std::uint32_t>(tokens.size() - first);
    for (const std::int32_t id : tokenizer_->encode(chat.completion))
      tokens.push_back(static_cast<std::uint32_t>(id) | kTrainedMark);
    tokens.push_back(end_ | kTrainedMark);
    encoded.group = hash64(chat.prompt);
    return "";
  }

  void add(const chat::Text& text, std::size_t begin, std::size_t end, std::uint32_t mark,
           std::vector<std::uint32_t>& tokens, EncodedChat& encoded) const {
    if (begin >= end) return;
    std::vector<std::int32_t> ids;
    const auto plain = plain_ranges(text, begin, end);
    encoded.special_texts += tokenizer_->encode_around(
        std::string_view(text.bytes()).substr(begin, end - begin), plain, ids);
    for (const std::int32_t id : ids) tokens.push_back(static_cast<std::uint32_t>(id) | mark);
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatForm> form_;
  std::vector<std::uint32_t> begin_;
  std::uint32_t end_;
  std::string file_;
};

}  // namespace

void make_chat_encoder(Encoder& encoder, const DataConfig& data,
                       const std::shared_ptr<const Tokenizer>& tokenizer, const fs::path& file) {
  auto form = form_of(data, *tokenizer, file);
  const auto stops = form ? form->stop_tokens() : std::vector<std::int64_t>();
  // Texts without a template end as any other.
  auto chats =
      std::make_shared<const ChatEncoder>(tokenizer, std::move(form), encoder, file.string());
  if (!stops.empty()) encoder.end = static_cast<std::uint32_t>(stops.front());
  encoder.append_chat = [chats = std::move(chats)](
                            std::string_view json, std::vector<std::uint32_t>& tokens,
                            EncodedChat& encoded) { return chats->append(json, tokens, encoded); };
}

std::string chat_key(const DataConfig& data, const fs::path& tokenizer, const fs::path& memory) {
  const fs::path own = tokenizer.parent_path() / "chat_template.jinja";
  std::string key;
  if (data.template_file.empty() && path_exists(own)) key = content_hash(own, memory);
  if (data.template_file == kChatMl) key = data.template_file;
  if (!data.template_file.empty() && data.template_file != kChatMl)
    key = content_hash(data.template_file, memory);
  for (const std::string& argument : data.template_args)
    key += fmt::format("\n{} {}", argument.size(), argument);
  return key;
}

void write_chat_files(const DataConfig& data, const std::string& model_weights,
                      const fs::path& folder) {
  const fs::path file = tokenizer_file(data, model_weights);
  const auto tokenizer = Tokenizer::open(file);
  const auto form = form_of(data, *tokenizer, file);
  if (const auto text = named_template(data))
    write_file_atomically(folder / "chat_template.jinja", *text);
  if (!form) return;
  const fs::path path = folder / "generation_config.json";
  nlohmann::json json = nlohmann::json::object();
  if (path_exists(path)) json = parse_json(read_file(path, kMaxTemplateBytes), path.string());
  std::set<std::int64_t> ends(form->stop_tokens().begin(), form->stop_tokens().end());
  if (const auto end = tokenizer->eos()) ends.insert(*end);
  const nlohmann::json old = json.value("eos_token_id", nlohmann::json());
  for (const nlohmann::json& id : old.is_array() ? old : nlohmann::json::array({old}))
    if (id.is_number_integer()) ends.insert(id.get<std::int64_t>());
  json["eos_token_id"] = ends;
  write_file_atomically(path, json_text(json, 2) + "\n");
}

}  // namespace dstrain::text
