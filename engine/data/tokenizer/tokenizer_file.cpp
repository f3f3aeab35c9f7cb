#include "engine/data/tokenizer/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/data/tokenizer/json_fields.h"

namespace dstrain {

namespace {

constexpr const char* kSupported =
    "dstrain reads BPE, of bytes as Qwen2.5 and Llama 3 have it, or of characters as Mistral has "
    "it";
constexpr int kDeepestStep = 16;
/// Every place of a text where an added token begins is compared with all of it.
constexpr std::size_t kMaxAddedTokenBytes = 1024;
constexpr std::size_t kMaxAroundText = 256;

std::int32_t read_id(const nlohmann::json& json, const std::string& where) {
  if (json.is_number_unsigned() &&
      json.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMaxTokenId)) {
    return json.get<std::int32_t>();
  }
  throw Error(ErrorKind::data, fmt::format("{}: expected an id of 0 to {}", where, kMaxTokenId));
}

void append_special(const JsonFields& processor, const std::string& name,
                    std::vector<std::int32_t>& ids, const std::string& path) {
  const nlohmann::json& tokens = processor.field("special_tokens");
  const std::string place = processor.place_of("special_tokens");
  const JsonFields token(JsonFields(tokens, path, place).field(name.c_str()), path,
                         place + "." + name);
  for (const nlohmann::json& id : token.list("ids")) ids.push_back(read_id(id, token.where("ids")));
}

std::vector<std::int32_t> template_ids(const nlohmann::json& json, const std::string& path,
                                       const std::string& place) {
  const JsonFields processor(json, path, place);
  std::vector<std::int32_t> ids;
  const nlohmann::json& pieces = processor.list("single");
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::string piece_place = fmt::format("{}.single[{}]", place, i);
    const JsonFields piece(pieces[i], path, piece_place);
    if (pieces[i].contains("SpecialToken")) {
      const JsonFields special(piece.field("SpecialToken"), path, piece_place + ".SpecialToken");
      append_special(processor, special.required_text("id"), ids, path);
    } else {
      const JsonFields sequence(piece.field("Sequence"), path, piece_place + ".Sequence");
      if (sequence.required_text("id") != "A") sequence.refuse("id", "\"A\", the one text");
      ids.push_back(kTemplateText);
    }
    if (ids.size() > kMaxAroundText || std::ranges::count(ids, kTemplateText) > 1) {
      processor.refuse(
          "single", fmt::format("the text once and at most {} tokens around it", kMaxAroundText));
    }
  }
  return ids;
}

/// The template of a processor, if it or one inside it is one.
std::optional<std::vector<std::int32_t>> find_template(const nlohmann::json& json,
                                                       const std::string& path,
                                                       const std::string& place, int depth) {
  if (json.is_null()) return {};
  const JsonFields fields(json, path, place);
  const std::string type = fields.required_text("type");
  if (type == "ByteLevel") return {};  // changes offsets only
  if (type == "TemplateProcessing") return template_ids(json, path, place);
  if (type != "Sequence" || depth >= kDeepestStep) {
    fields.refuse("type", "ByteLevel, TemplateProcessing or Sequence, which are supported");
  }
  std::optional<std::vector<std::int32_t>> found;
  const nlohmann::json& list = fields.list("processors");
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto inner =
        find_template(list[i], path, fmt::format("{}.processors[{}]", place, i), depth + 1);
    if (inner && found) fields.refuse("processors", "one TemplateProcessing at most");
    if (inner) found = std::move(inner);
  }
  return found;
}

/// A token of tokenizer_config.json: its text, or an object with it.
std::optional<std::string> configured_token(const nlohmann::json& config, const char* key,
                                            const std::string& path) {
  const nlohmann::json& value = value_of(config, key);
  if (value.is_null()) return {};
  if (value.is_string()) return value.get<std::string>();
  return JsonFields(value, path, key).required_text("content");
}

std::string configured_template(const nlohmann::json& config) {
  const nlohmann::json& value = value_of(config, "chat_template");
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return {};
  for (const nlohmann::json& named : value) {
    if (!named.is_object() || value_of(named, "name") != "default") continue;
    if (value_of(named, "template").is_string()) return named.at("template").get<std::string>();
  }
  return {};
}

}  // namespace

const nlohmann::json& value_of(const nlohmann::json& object, const char* key) {
  static const nlohmann::json null_value;
  const auto found = object.find(key);
  return found == object.end() ? null_value : *found;
}

void check_model(const TokenizerJson& file, const std::string& path) {
  if (!file.rest.contains("model")) {
    throw Error(ErrorKind::data, fmt::format("{}: model: missing", path),
                "expected a Hugging Face tokenizer.json");
  }
  const JsonFields model(file.rest.at("model"), path, "model");
  // Files of the early days have no type.
  const std::string type = model.text("type", "BPE");
  if (type != "BPE") {
    throw Error(ErrorKind::data, fmt::format("{}: model.type: '{}' is not supported", path, type),
                kSupported);
  }
  if (!file.has_vocab) model.refuse("vocab", "an object of tokens and their ids");
  if (!file.has_merges) model.refuse("merges", "a list of pairs of tokens");
}

TokenTable read_vocab(const TokenizerJson& file, const std::string& path) {
  TokenTable vocab(file.vocab.size());
  for (const TokenizerJson::Entry& entry : file.vocab) vocab.set(file.view(entry.token), entry.id);
  std::vector<std::uint32_t> owner;  // 1 + index of the entry that has an id
  for (std::size_t i = 0; i < vocab.entries().size(); ++i) {
    const TokenTable::Entry& entry = vocab.entries()[i];
    const auto id = static_cast<std::size_t>(entry.id);
    if (id >= owner.size()) owner.resize(std::max(id + 1, vocab.entries().size()), 0);
    if (owner[id] != 0) {
      throw Error(ErrorKind::data,
                  fmt::format("{}: model.vocab gives id {} to '{}' and to '{}'", path, entry.id,
                              shown_text(vocab.token(vocab.entries()[owner[id] - 1])),
                              shown_text(vocab.token(entry))));
    }
    owner[id] = static_cast<std::uint32_t>(i + 1);
  }
  return vocab;
}

std::vector<AddedToken> read_added_tokens(const nlohmann::json& file, const TokenTable& vocab,
                                          const std::string& path) {
  std::vector<AddedToken> tokens;
  if (value_of(file, "added_tokens").is_null()) return tokens;
  const nlohmann::json& list = JsonFields(file, path, "").list("added_tokens");
  TokenTable known(list.size());  // content to index in `tokens`
  auto next_id = static_cast<std::int32_t>(vocab.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonFields fields(list[i], path, fmt::format("added_tokens[{}]", i));
    AddedToken token{.content = fields.required_text("content")};
    token.single_word = fields.flag("single_word", false);
    token.lstrip = fields.flag("lstrip", false);
    token.rstrip = fields.flag("rstrip", false);
    token.special = fields.flag("special", false);
    token.normalized = fields.flag("normalized", !token.special);
    if (token.content.empty()) continue;
    if (token.content.size() > kMaxAddedTokenBytes) {
      throw Error(ErrorKind::data,
                  fmt::format("{}: {} bytes, an added token has at most {}",
                              fields.where("content"), token.content.size(), kMaxAddedTokenBytes));
    }
    if (const auto index = known.find(token.content)) {  // later properties hold
      AddedToken& earlier = tokens[static_cast<std::size_t>(*index)];
      token.id = earlier.id;
      token.special = token.special || earlier.special;
      earlier = std::move(token);
      continue;
    }
    token.id = vocab.find(token.content) ? *vocab.find(token.content) : next_id++;
    known.set(token.content, static_cast<std::int32_t>(tokens.size()));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<std::int32_t> read_template(const nlohmann::json& file, const std::string& path) {
  return find_template(value_of(file, "post_processor"), path, "post_processor", 0)
      .value_or(std::vector<std::int32_t>{kTemplateText});
}

TokenizerConfig read_tokenizer_config(std::string_view json, const std::string& path) {
  const nlohmann::json config = read_small_json(json, path);
  return {.bos = configured_token(config, "bos_token", path),
          .eos = configured_token(config, "eos_token", path),
          .pad = configured_token(config, "pad_token", path),
          .chat_template = configured_template(config)};
}

}  // namespace dstrain
