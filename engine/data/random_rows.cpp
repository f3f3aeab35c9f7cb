#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/philox.h"
#include "engine/data/text_rows.h"

namespace dstrain::text {
namespace {

constexpr std::size_t kWords = 4;  ///< random numbers of one call

class RandomRows final : public TextDataset {
 public:
  RandomRows(std::int64_t size, int sequence, std::int64_t vocab_size, std::int64_t seed,
             Split split, bool pairs)
      : size_(size),
        sequence_(sequence),
        vocab_size_(static_cast<std::uint32_t>(vocab_size)),
        key_(random_key(static_cast<std::uint64_t>(seed), RandomStream::synthetic)),
        split_(split == Split::train ? kTrain : kTest),
        pairs_(pairs) {}

  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] int sequence() const override { return sequence_; }
  [[nodiscard]] int vocab_size() const override { return static_cast<int>(vocab_size_); }
  [[nodiscard]] int max_packed() const override { return pairs_ ? 2 : 0; }
  [[nodiscard]] bool has_pairs() const override { return pairs_; }
  [[nodiscard]] std::int64_t targets(std::int64_t) const override { return pairs_ ? 1 : sequence_; }

  std::int64_t read(std::int64_t index, const TextRow& row,
                    std::vector<std::int32_t>& starts) const override {
    DSTRAIN_CHECK(index >= 0 && index < size_, "no such row");
    DSTRAIN_CHECK(std::cmp_equal(row.tokens.size(), sequence_), "wrong row buffers");
    // One token more than the row, for the last label.
    const std::size_t length = row.tokens.size();
    const std::uint64_t calls = (length + 1 + kWords - 1) / kWords;
    for (std::uint64_t call = 0; call < calls; ++call) {
      const Philox random =
          Philox::at(key_, split_, static_cast<std::uint64_t>(index) * calls + call);
      for (std::size_t w = 0; w < kWords; ++w) {
        const std::size_t t = call * kWords + w;
        const std::int64_t token = random.below(static_cast<int>(w), vocab_size_);
        if (t < length) row.tokens[t] = token;
        if (t > 0 && t <= length) row.labels[t - 1] = token;
      }
    }
    std::ranges::fill(row.weights, 1.0F);
    const std::size_t second = pairs_ ? length / 2 : length;  // where the rejected answer begins
    for (std::size_t t = 0; t < row.positions.size(); ++t) {
      row.positions[t] = static_cast<std::int32_t>(t < second ? t : t - second);
    }
    starts.assign(1, 0);
    if (!pairs_) return sequence_;
    starts.push_back(static_cast<std::int32_t>(second));
    std::ranges::fill(row.weights.subspan(second), -1.0F);
    row.weights[second - 1] = row.weights.back() = 0;
    return sequence_;
  }

 private:
  // Beside the counters of random images.
  static constexpr std::uint64_t kTrain = 4, kTest = 5;

  std::int64_t size_;
  int sequence_;
  std::uint32_t vocab_size_;
  std::uint64_t key_;
  std::uint64_t split_;
  bool pairs_;
};

}  // namespace

std::unique_ptr<TextDataset> make_random_rows(std::int64_t size, int sequence,
                                              std::int64_t vocab_size, std::int64_t seed,
                                              Split split, bool pairs) {
  DSTRAIN_CHECK(vocab_size > 0 && vocab_size <= INT32_MAX, "random tokens need a vocabulary");
  return std::make_unique<RandomRows>(size, sequence, vocab_size, seed, split, pairs);
}

}  // namespace dstrain::text
