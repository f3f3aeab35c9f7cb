#define XXH_INLINE_ALL
#include "engine/data/tokenizer/word_cache.h"

#include <xxhash.h>

#include <utility>

namespace dstrain {

namespace {

constexpr std::size_t kMaxSlots = std::size_t{1} << 16;

}  // namespace

std::uint64_t WordCache::hash(std::string_view word) {
  return XXH3_64bits(word.data(), word.size());
}

bool WordCache::append(std::string_view word, std::uint64_t hash,
                       std::vector<std::int32_t>& ids) const {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = hash & mask; slots_[i].length != 0; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.hash != hash || word != std::string_view(words_.data() + slot.word, slot.length))
      continue;
    ids.insert(ids.end(), ids_.begin() + slot.ids, ids_.begin() + slot.ids + slot.count);
    return true;
  }
  return false;
}

void WordCache::insert(std::string_view word, std::uint64_t hash,
                       std::span<const std::int32_t> ids) {
  if (2 * (used_ + 1) > slots_.size()) {
    if (slots_.size() < kMaxSlots) {
      resize(2 * slots_.size());
    } else {
      std::fill(slots_.begin(), slots_.end(), Slot{});
      used_ = 0;
      words_.clear();
      ids_.clear();
    }
  }
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = hash & mask;
  while (slots_[i].length != 0) i = (i + 1) & mask;
  slots_[i] = {.hash = hash,
               .word = static_cast<std::uint32_t>(words_.size()),
               .ids = static_cast<std::uint32_t>(ids_.size()),
               .length = static_cast<std::uint16_t>(word.size()),
               .count = static_cast<std::uint16_t>(ids.size())};
  ++used_;
  words_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

void WordCache::resize(std::size_t slots) {
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots));
  for (const Slot& slot : old) {
    if (slot.length == 0) continue;
    std::size_t i = slot.hash & (slots - 1);
    while (slots_[i].length != 0) i = (i + 1) & (slots - 1);
    slots_[i] = slot;
  }
}

}  // namespace dstrain
