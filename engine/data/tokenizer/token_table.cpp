#define XXH_INLINE_ALL
#include "engine/data/tokenizer/token_table.h"

#include <xxhash.h>

#include <bit>

namespace dstrain {

namespace {

std::uint64_t hash_of(std::string_view token) { return XXH3_64bits(token.data(), token.size()); }
std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

}  // namespace

TokenTable::TokenTable(std::size_t expected) {
  entries_.reserve(expected);
  grow(std::bit_ceil(2 * expected + 16));
}

std::size_t TokenTable::slot_of(std::string_view token, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  while (slots_[slot].index != 0 && (slots_[slot].tag != tag_of(hash) ||
                                     this->token(entries_[slots_[slot].index - 1]) != token)) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

void TokenTable::grow(std::size_t slots) {
  slots_.assign(slots, {});
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::uint64_t hash = hash_of(token(entries_[i]));
    slots_[slot_of(token(entries_[i]), hash)] = {.tag = tag_of(hash),
                                                 .index = static_cast<std::uint32_t>(i + 1)};
  }
}

void TokenTable::set(std::string_view token, std::int32_t id) {
  const std::uint64_t hash = hash_of(token);
  const std::size_t slot = slot_of(token, hash);
  if (slots_[slot].index != 0) {
    entries_[slots_[slot].index - 1].id = id;
    return;
  }
  entries_.push_back({.offset = static_cast<std::uint32_t>(text_.size()),
                      .length = static_cast<std::uint32_t>(token.size()),
                      .id = id});
  text_ += token;
  slots_[slot] = {.tag = tag_of(hash), .index = static_cast<std::uint32_t>(entries_.size())};
  if (2 * entries_.size() > slots_.size()) grow(2 * slots_.size());
}

std::optional<std::int32_t> TokenTable::find(std::string_view token) const {
  const std::uint32_t index = slots_[slot_of(token, hash_of(token))].index;
  if (index == 0) return {};
  return entries_[index - 1].id;
}

}  // namespace dstrain
