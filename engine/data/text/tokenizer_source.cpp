#include "engine/data/text/tokenizer_source.h"

#include <fmt/format.h>

#include <initializer_list>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/model_folder.h"
#include "engine/data/text/chat_encoder.h"
#include "engine/data/text/file_stamp.h"
#include "engine/data/text/format.h"
#include "engine/data/text/token_cache.h"
#include "engine/data/tokenizer/chat_template.h"
#include "engine/data/tokenizer/utf8.h"
#include "engine/recipe/choices.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;

std::uint32_t end_token(const Tokenizer& tokenizer, const fs::path& file) {
  if (const auto end = tokenizer.eos()) return static_cast<std::uint32_t>(*end);
  for (const char* name : {"<|endoftext|>", "</s>"}) {
    if (const auto end = tokenizer.token_id(name)) return static_cast<std::uint32_t>(*end);
  }
  throw Error(ErrorKind::data,
              fmt::format("{}: no end token: there is no eos_token in tokenizer_config.json beside "
                          "it, and no <|endoftext|> or </s> in it",
                          file.string()),
              "put the model's tokenizer_config.json beside it");
}

Encoder open_encoder(const DataConfig& data, const fs::path& file) {
  const auto tokenizer = Tokenizer::open(file);
  const bool chat = text_format(data).chat;
  if (chat) {
    for (const char* name : {"<|im_start|>", "<|im_end|>"}) {
      if (tokenizer->token_id(name)) continue;
      throw Error(ErrorKind::usage,
                  fmt::format("{} has no token {}, which the chat prompts of data.name: {} need",
                              file.string(), name, spelling(data.name)),
                  "use a tokenizer of the Qwen2.5 family; for others, data.name: jsonl with "
                  "data.prompt and data.response");
    }
  }
  Encoder encoder;
  encoder.append = [tokenizer](std::string_view text, std::vector<std::uint32_t>& tokens) {
    for (const std::int32_t id : tokenizer->encode(text)) {
      tokens.push_back(static_cast<std::uint32_t>(id));
    }
  };
  encoder.append_more = [tokenizer](std::string_view text, std::vector<std::uint32_t>& tokens) {
    const std::string valid = is_utf8(text) ? std::string(text) : replace_invalid_utf8(text);
    const TextStart start = tokens.empty()
                                ? TextStart::first
                                : tokenizer->start_behind(static_cast<std::int32_t>(tokens.back()));
    std::vector<std::int32_t> ids;
    tokenizer->encode_around(valid, {}, start, ids);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  };
  encoder.vocab_size = tokenizer->vocab_size();
  for (const std::int32_t id : tokenizer->opening())
    encoder.begin.push_back(static_cast<std::uint32_t>(id));
  const std::uint32_t end = end_token(*tokenizer, file);
  encoder.end = chat ? static_cast<std::uint32_t>(*tokenizer->token_id("<|im_end|>")) : end;
  encoder.pad =
      static_cast<std::uint32_t>(tokenizer->pad().value_or(static_cast<std::int32_t>(end)));
  encoder.system = qwen_default_system(tokenizer->chat_template());
  if (data.name == DatasetName::chat) make_chat_encoder(encoder, data, tokenizer, file);
  return encoder;
}

}  // namespace

fs::path tokenizer_file(const DataConfig& data, const std::string& model_weights) {
  const fs::path place = data.tokenizer.empty() ? model_weights : data.tokenizer;
  if (place.empty()) {
    throw Error(ErrorKind::usage, "no tokenizer: data.tokenizer and model.weights are empty",
                "name the model's folder, or a tokenizer.json, in data.tokenizer");
  }
  const fs::path file = path_kind(place) == PathKind::folder ? place / "tokenizer.json" : place;
  if (!path_exists(file)) {
    const std::string known = hint_for_model_folder(place);
    throw Error(
        ErrorKind::data,
        fmt::format("{} '{}': there is no {}",
                    data.tokenizer.empty() ? "model.weights" : "data.tokenizer", place.string(),
                    file.string()),
        known.empty() ? "name the model's folder, or a tokenizer.json, in data.tokenizer" : known);
  }
  return file;
}

EncoderSource tokenizer_source(const DataConfig& data, const std::string& model_weights) {
  const fs::path file = tokenizer_file(data, model_weights);
  const fs::path config = file.parent_path() / "tokenizer_config.json";
  const fs::path memory = make_cache_folder(data);
  EncoderSource source;
  source.hash = content_hash(file, memory);
  if (path_exists(config)) source.hash += content_hash(config, memory);
  source.tokenizer = source.hash;
  if (data.name == DatasetName::chat) source.hash += chat_key(data, file, memory);
  source.open = [data, file] { return open_encoder(data, file); };
  return source;
}

}  // namespace dstrain::text
