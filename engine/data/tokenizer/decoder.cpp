#include "engine/data/tokenizer/decoder.h"

#include "engine/data/tokenizer/byte_alphabet.h"
#include "engine/data/tokenizer/normalizer.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain {

Decoder::Decoder(const nlohmann::json& json, const std::string& path)
    : path_(path),
      steps_(read_decoder(json, path)),
      byte_level_(steps_.size() == 1 && steps_.front().kind == DecodeStep::Kind::byte_level) {}

void Decoder::set(std::int32_t id, std::string_view token, bool special) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  std::string bytes(token);
  if (byte_level_) bytes = bytes_of_token(token).value_or(std::move(bytes));
  tokens_[index] = {.offset = static_cast<std::uint32_t>(bytes_.size()),
                    .length = static_cast<std::uint32_t>(bytes.size()),
                    .special = special,
                    .known = true};
  bytes_ += bytes;
}

std::string Decoder::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  std::vector<std::string> texts;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= size()) continue;
    const Token& token = tokens_[static_cast<std::size_t>(id)];
    if (!token.known || (skip_special_tokens && token.special)) continue;
    if (byte_level_) {
      text.append(bytes_, token.offset, token.length);
    } else {
      texts.emplace_back(bytes_, token.offset, token.length);
    }
  }
  if (!byte_level_) {
    const auto bytes = [&texts] {
      std::size_t sum = 0;
      for (const std::string& part : texts) sum += part.size();
      return sum;
    };
    const std::size_t before = bytes();
    for (const DecodeStep& step : steps_) {
      step.apply(texts);
      demand_growth(bytes(), before, path_ + ": decoder");
    }
    for (const std::string& part : texts) text += part;
  }
  return is_utf8(text) ? text : replace_invalid_utf8(text);
}

}  // namespace dstrain
