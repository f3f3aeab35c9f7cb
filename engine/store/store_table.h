#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

namespace dstrain::comm {

/// A value that several connections may be sending.
using StoreValue = std::shared_ptr<const std::string>;

/// What the job's store holds, within a bound of memory.
class StoreTable {
 public:
  explicit StoreTable(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Null when the key is not there.
  [[nodiscard]] StoreValue find(const std::string& key) const;
  /// False when there is no room; a value that takes no more than the one before always has.
  [[nodiscard]] bool put(const std::string& key, StoreValue value);
  /// The number at `key`, 0 where there is nothing, plus `amount`; nothing when there is no number
  /// or the sum is beyond 64 bits. A counter is kept as its decimal text.
  [[nodiscard]] std::optional<std::int64_t> sum(const std::string& key, std::int64_t amount) const;

 private:
  std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::string, StoreValue> values_;
};

}  // namespace dstrain::comm
