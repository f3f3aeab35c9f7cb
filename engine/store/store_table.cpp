#include "engine/store/store_table.h"

#include <charconv>
#include <utility>

namespace dstrain::comm {
namespace {

/// What a key costs beside its bytes, roughly.
constexpr std::size_t kEntryBytes = 128;

}  // namespace

StoreValue StoreTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

bool StoreTable::put(const std::string& key, StoreValue value) {
  const StoreValue old = find(key);
  const std::size_t before = old ? key.size() + old->size() + kEntryBytes : 0;
  const std::size_t after = key.size() + value->size() + kEntryBytes;
  if (bytes_ - before + after > max_bytes_ && after > before) return false;
  bytes_ = bytes_ - before + after;
  values_[key] = std::move(value);
  return true;
}

std::optional<std::int64_t> StoreTable::sum(const std::string& key, std::int64_t amount) const {
  std::int64_t before = 0;
  if (const StoreValue text = find(key); text && !text->empty()) {
    const char* const last = text->data() + text->size();
    const auto [end, error] = std::from_chars(text->data(), last, before);
    if (error != std::errc{} || end != last) return std::nullopt;
  }
  std::int64_t sum = 0;
  if (__builtin_add_overflow(before, amount, &sum)) return std::nullopt;
  return sum;
}

}  // namespace dstrain::comm
