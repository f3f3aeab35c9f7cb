#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// The token ids of words met before, for one thread. Forgets everything when it is full, at a few
/// MiB.
class WordCache {
 public:
  /// Longer words seldom come again.
  static constexpr std::size_t kMaxWordBytes = 64;

  [[nodiscard]] static std::uint64_t hash(std::string_view word);

  /// Writes the ids of `word` at the end of `ids` when it is known.
  [[nodiscard]] bool append(std::string_view word, std::uint64_t hash,
                            std::vector<std::int32_t>& ids) const;

  /// `word` must be no longer than kMaxWordBytes and not be there yet.
  void insert(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids);

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t word = 0;    ///< offset into words_
    std::uint32_t ids = 0;     ///< offset into ids_
    std::uint16_t length = 0;  ///< bytes of the word; 0 is a free slot
    std::uint16_t count = 0;   ///< ids
  };

  void resize(std::size_t slots);

  std::vector<Slot> slots_ = std::vector<Slot>(1024);  ///< a power of two of them
  std::size_t used_ = 0;
  std::string words_;
  std::vector<std::int32_t> ids_;
};

}  // namespace dstrain
