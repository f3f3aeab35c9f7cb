#include "engine/data/text/chat_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/chat/answer_pair.h"
#include "engine/chat/json_reader.h"
#include "engine/data/text/chat_form.h"
#include "engine/data/text/file_stamp.h"
#include "engine/data/text/hash.h"
#include "engine/data/text/tokenizer_source.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 20;
/// Answers of a chat that data.split_turns takes: each sample has all before it.
constexpr std::size_t kMaxSplitTurns = 256;

class ChatEncoder {
 public:
  ChatEncoder(std::shared_ptr<const Tokenizer> tokenizer, std::optional<ChatForm> form,
              const Encoder& encoder, const DataConfig& data, std::string file)
      : tokenizer_(std::move(tokenizer)),
        form_(std::move(form)),
        begin_(encoder.begin),
        end_(encoder.end),
        split_turns_(data.split_turns),
        pairs_(data.pairs),
        room_(data.too_long == TooLong::turns ? static_cast<std::size_t>(data.sequence)
                                              : std::numeric_limits<std::size_t>::max()),
        file_(std::move(file)) {}

  std::string append(std::string_view json, std::vector<std::uint32_t>& tokens,
                     std::vector<EncodedChat>& samples) const {
    try {
      const auto place = [](std::size_t byte) { return fmt::format("byte {}", byte); };
      const chat::Value record = chat::read_json_value(json, place);
      if (pairs_) {
        append_pair(chat::read_pair(record), tokens, samples);
        return "";
      }
      const chat::Conversation chat = chat::read_chat(record, chat::chat_format(record));
      if (chat.is_plain()) {
        samples.push_back(append_plain(chat, tokens));
        return "";
      }
      require_form();
      const chat::RenderedChat whole = form_->rendered(chat, chat::TrainedTurns::all);
      if (whole.spans.empty()) return "no answer of it is trained";
      const std::uint64_t group =
          hash64(std::string_view(whole.text.bytes()).substr(0, whole.spans.front().begin));
      if (split_turns_)
        append_turns(chat, tokens, samples);
      else
        append_sample(chat, whole, chat::TrainedTurns::all, tokens, samples);
      for (EncodedChat& sample : samples) sample.group = group;
      return samples.empty() ? "no answer of it is trained" : "";
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::usage) throw;
      return error.what();
    }
  }

 private:
  struct Encoded {
    std::vector<std::uint32_t> tokens;
    EncodedChat sample;
  };

  void require_form() const {
    if (form_) return;
    throw Error(ErrorKind::usage, fmt::format("{} has no chat template", file_),
                "name one in data.template: a Jinja file, or chatml");
  }

  /// A sample of each answer, the chosen one first.
  void append_pair(const chat::AnswerPair& pair, std::vector<std::uint32_t>& tokens,
                   std::vector<EncodedChat>& samples) const {
    for (const chat::Conversation* chat : {&pair.chosen, &pair.rejected}) {
      if (chat->is_plain()) {
        samples.push_back(append_plain(*chat, tokens));
        continue;
      }
      require_form();
      const chat::RenderedChat rendered = form_->rendered(*chat, chat::TrainedTurns::all);
      if (rendered.spans.empty())
        throw Error(ErrorKind::data, fmt::format("nothing of the {} answer is trained",
                                                 chat == &pair.chosen ? "chosen" : "rejected"));
      append_sample(*chat, rendered, chat::TrainedTurns::all, tokens, samples);
      samples.back().group =
          hash64(std::string_view(rendered.text.bytes()).substr(0, rendered.spans.front().begin));
    }
    samples.back().group = samples.front().group;
  }

  /// A sample of each answer that is trained.
  void append_turns(const chat::Conversation& chat, std::vector<std::uint32_t>& tokens,
                    std::vector<EncodedChat>& samples) const {
    const auto is_answer = [](const chat::Message& message) {
      return message.role == chat::Role::assistant && message.trained;
    };
    const auto answers = std::ranges::count_if(chat.messages, is_answer);
    if (std::cmp_greater(answers, kMaxSplitTurns))
      throw Error(ErrorKind::data, fmt::format("{} answers; data.split_turns takes chats of {}",
                                               answers, kMaxSplitTurns));
    for (std::size_t i = 0; i < chat.messages.size(); ++i) {
      if (!is_answer(chat.messages[i])) continue;
      const chat::Conversation part = chat::beginning_of(chat, i + 1);
      const chat::RenderedChat rendered = form_->rendered(part, chat::TrainedTurns::last);
      if (!rendered.spans.empty())
        append_sample(part, rendered, chat::TrainedTurns::last, tokens, samples);
    }
  }

  void append_sample(const chat::Conversation& chat, const chat::RenderedChat& rendered,
                     chat::TrainedTurns turns, std::vector<std::uint32_t>& tokens,
                     std::vector<EncodedChat>& samples) const {
    Encoded encoded = encode(rendered);
    if (encoded.tokens.size() > room_) shorten(chat, turns, encoded);
    tokens.insert(tokens.end(), encoded.tokens.begin(), encoded.tokens.end());
    encoded.sample.end = tokens.size();
    samples.push_back(encoded.sample);
  }

  /// Takes away the fewest of the oldest turns behind the system message with which it fits; none
  /// where it never does.
  void shorten(const chat::Conversation& chat, chat::TrainedTurns turns, Encoded& encoded) const {
    std::size_t first = 0;  // message that is no system message
    while (first < chat.messages.size() && (chat.messages[first].role == chat::Role::system ||
                                            chat.messages[first].role == chat::Role::developer))
      ++first;
    std::vector<std::size_t> begins;  // of turns that may come first
    for (std::size_t i = first + 1; i < chat.messages.size(); ++i)
      if (chat.messages[i].role == chat::Role::user) begins.push_back(i);
    std::optional<Encoded> best;
    for (std::size_t low = 0, high = begins.size(); low < high;) {
      const std::size_t middle = (low + high) / 2;
      const chat::RenderedChat rendered =
          form_->rendered(chat::without_messages(chat, first, begins[middle] - first), turns);
      Encoded shorter = encode(rendered);
      if (shorter.tokens.size() > room_) {
        low = middle + 1;
        continue;
      }
      high = middle;
      if (!rendered.spans.empty()) best = std::move(shorter);
    }
    if (!best) return;
    encoded = *std::move(best);
    encoded.sample.shortened = true;
  }

  [[nodiscard]] Encoded encode(const chat::RenderedChat& rendered) const {
    Encoded encoded;
    const std::string& text = rendered.text.bytes();
    std::size_t at = 0;
    for (const chat::TrainedSpan& span : rendered.spans) {
      add(rendered.text, at, span.begin, 0, encoded);
      encoded.sample.last_answer = static_cast<std::uint32_t>(encoded.tokens.size());
      add(rendered.text, span.begin, span.end, kTrainedMark, encoded);
      at = span.end;
    }
    add(rendered.text, at, text.size(), 0, encoded);
    const std::vector<std::uint32_t>& tokens = encoded.tokens;
    if (tokens.size() > 1 && tokens[0] == tokens[1] &&
        tokenizer_->bos() == static_cast<std::int32_t>(tokens[0]))
      throw Error(ErrorKind::data, "it begins with two tokens of a beginning");
    return encoded;
  }

  EncodedChat append_plain(const chat::Conversation& chat,
                           std::vector<std::uint32_t>& tokens) const {
    EncodedChat sample;
    const std::size_t first = tokens.size();
    tokens.insert(tokens.end(), begin_.begin(), begin_.end());
    for (const std::int32_t id : tokenizer_->encode(chat.prompt))
      tokens.push_back(static_cast<std::uint32_t>(id));
    sample.last_answer = static_cast<std::uint32_t>(tokens.size() - first);
    std::vector<std::int32_t> ids;
    tokenizer_->encode_around(chat.completion, {}, start_behind(tokens, first), ids);
    for (const std::int32_t id : ids)
      tokens.push_back(static_cast<std::uint32_t>(id) | kTrainedMark);
    tokens.push_back(end_ | kTrainedMark);
    sample.end = tokens.size();
    sample.group = hash64(chat.prompt);
    return sample;
  }

  /// Where a text stands behind the tokens from `first` on.
  [[nodiscard]] TextStart start_behind(const std::vector<std::uint32_t>& tokens,
                                       std::size_t first) const {
    if (tokens.size() == first) return TextStart::first;
    return tokenizer_->start_behind(static_cast<std::int32_t>(tokens.back() & ~kTrainedMark));
  }

  void add(const chat::Text& text, std::size_t begin, std::size_t end, std::uint32_t mark,
           Encoded& encoded) const {
    if (begin >= end) return;
    std::vector<std::int32_t> ids;
    const auto plain = plain_ranges(text, begin, end);
    encoded.sample.special_texts +=
        tokenizer_->encode_around(std::string_view(text.bytes()).substr(begin, end - begin), plain,
                                  start_behind(encoded.tokens, 0), ids);
    for (const std::int32_t id : ids)
      encoded.tokens.push_back(static_cast<std::uint32_t>(id) | mark);
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatForm> form_;
  std::vector<std::uint32_t> begin_;
  std::uint32_t end_;
  bool split_turns_;
  bool pairs_;
  std::size_t room_;  ///< tokens of a sample, beyond which turns are taken away
  std::string file_;
};

}  // namespace

void make_chat_encoder(Encoder& encoder, const DataConfig& data,
                       const std::shared_ptr<const Tokenizer>& tokenizer, const fs::path& file) {
  auto form = ChatForm::of(data, *tokenizer, file);
  const auto stops = form ? form->stop_tokens() : std::vector<std::int64_t>();
  // Texts without a template end as any other.
  auto chats =
      std::make_shared<const ChatEncoder>(tokenizer, std::move(form), encoder, data, file.string());
  if (!stops.empty()) encoder.end = static_cast<std::uint32_t>(stops.front());
  encoder.append_chat = [chats = std::move(chats)](std::string_view json,
                                                   std::vector<std::uint32_t>& tokens,
                                                   std::vector<EncodedChat>& samples) {
    return chats->append(json, tokens, samples);
  };
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
  if (!data.chat_date.empty()) key += "\nday " + data.chat_date;
  if (data.split_turns) key += "\nsplit";
  if (data.pairs) key += "\npairs";
  if (data.too_long == TooLong::turns) key += fmt::format("\nturns {}", data.sequence);
  return key;
}

void write_chat_files(const DataConfig& data, const std::string& model_weights,
                      const fs::path& folder) {
  const fs::path file = tokenizer_file(data, model_weights);
  const auto tokenizer = Tokenizer::open(file);
  const auto form = ChatForm::of(data, *tokenizer, file);
  if (const auto text = named_template(data))
    write_file_atomically(folder / "chat_template.jinja", *text);
  if (!form) return;
  const fs::path path = folder / "generation_config.json";
  nlohmann::json json = nlohmann::json::object();
  if (path_exists(path)) json = parse_json(read_file(path, kMaxFileBytes), path.string());
  std::set<std::int64_t> ends(form->stop_tokens().begin(), form->stop_tokens().end());
  if (const auto end = tokenizer->eos()) ends.insert(*end);
  const nlohmann::json old = json.value("eos_token_id", nlohmann::json());
  for (const nlohmann::json& id : old.is_array() ? old : nlohmann::json::array({old}))
    if (id.is_number_integer()) ends.insert(id.get<std::int64_t>());
  json["eos_token_id"] = ends;
  write_file_atomically(path, json_text(json, 2) + "\n");
}

}  // namespace dstrain::text
