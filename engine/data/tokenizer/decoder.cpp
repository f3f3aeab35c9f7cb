#include "engine/data/tokenizer/decoder.h"

#include "engine/data/tokenizer/byte_alphabet.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain {

void Decoder::set(std::int32_t id, std::string_view token, bool special) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  const std::string bytes = bytes_of_token(token).value_or(std::string(token));
  tokens_[index] = {.offset = static_cast<std::uint32_t>(bytes_.size()),
                    .length = static_cast<std::uint32_t>(bytes.size()),
                    .special = special};
  bytes_ += bytes;
}

std::string Decoder::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= size()) continue;
    const Token& token = tokens_[static_cast<std::size_t>(id)];
    if (!(skip_special_tokens && token.special)) text.append(bytes_, token.offset, token.length);
  }
  return is_utf8(text) ? text : replace_invalid_utf8(text);
}

}  // namespace dstrain
