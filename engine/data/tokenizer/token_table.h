#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// From the text of a token to its id. Reading is safe from any thread.
class TokenTable {
 public:
  explicit TokenTable(std::size_t expected = 0);

  /// A token that is there already gets the new id.
  void set(std::string_view token, std::int32_t id);
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view token) const;
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

  struct Entry {
    std::uint32_t offset = 0;
    std::uint32_t length = 0;
    std::int32_t id = 0;
  };
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] std::string_view token(const Entry& entry) const {
    return std::string_view(text_).substr(entry.offset, entry.length);
  }

 private:
  struct Slot {
    std::uint32_t tag = 0;    ///< of the hash; tells most tokens apart without a look at their text
    std::uint32_t index = 0;  ///< 1 + index of an entry; 0 is free
  };
  /// The slot that holds the token, or the free one where it belongs.
  [[nodiscard]] std::size_t slot_of(std::string_view token, std::uint64_t hash) const;
  void grow(std::size_t slots);

  std::string text_;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;  ///< a power of two of them
};

}  // namespace dstrain
