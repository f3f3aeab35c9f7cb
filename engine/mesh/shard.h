#pragma once

#include <cstdint>
#include <vector>

namespace dstrain {

/// Half-open range of elements or samples.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  [[nodiscard]] bool empty() const { return end <= begin; }
  bool operator==(const Range&) const = default;
};
[[nodiscard]] Range intersect(Range a, Range b);

/// Part `index` of `total` items split into `parts` consecutive pieces whose sizes differ by at
/// most one.
[[nodiscard]] Range even_part(std::int64_t total, std::int64_t parts, std::int64_t index);

/// Alignment, in elements, of each tensor inside a flat group buffer and of each rank's shard of
/// it: 256 bytes of the narrowest dtype.
inline constexpr std::int64_t kFlatAlignment = 128;

/// Where the tensors of one parameter group lie in its flat buffer, and which part of it each shard
/// owns.
class FlatGroup {
 public:
  /// `sizes`: elements of each tensor, in order. The total is padded so that it splits evenly into
  /// `shards` aligned parts.
  FlatGroup(const std::vector<std::int64_t>& sizes, int shards);

  [[nodiscard]] std::int64_t offset(std::size_t tensor) const { return offsets_[tensor]; }
  [[nodiscard]] std::int64_t size(std::size_t tensor) const { return sizes_[tensor]; }
  [[nodiscard]] std::size_t num_tensors() const { return sizes_.size(); }
  [[nodiscard]] std::int64_t padded() const { return padded_; }
  [[nodiscard]] std::int64_t shard_size() const { return padded_ / shards_; }
  /// The flat range that `shard` owns.
  [[nodiscard]] Range shard(int shard) const;
  /// The elements of `tensor`, counted from its own start, that lie in `shard`; may be empty.
  [[nodiscard]] Range owned(std::size_t tensor, int shard) const;

 private:
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> offsets_;
  std::int64_t padded_ = 0;
  int shards_ = 1;
};

}  // namespace dstrain
