#include "engine/data/text/packing.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/philox.h"

namespace dstrain::text {
namespace {

/// Rows by their free places, with a bit for each number of places that some row has free.
class FreePlaces {
 public:
  explicit FreePlaces(int sequence)
      : rows_(static_cast<std::size_t>(sequence) + 1), words_(rows_.size() / kBits + 1) {}

  /// A row with at least `length` places, as few as possible; -1 when there is none.
  [[nodiscard]] std::int64_t take(std::size_t length, std::size_t& places) {
    std::uint64_t word = words_[length / kBits] & (~std::uint64_t{0} << (length % kBits));
    for (std::size_t w = length / kBits;;) {
      if (word != 0) {
        places = w * kBits + static_cast<std::size_t>(std::countr_zero(word));
        auto& rows = rows_[places];
        const std::uint32_t row = rows.back();
        rows.pop_back();
        if (rows.empty()) words_[w] &= ~(std::uint64_t{1} << (places % kBits));
        return row;
      }
      if (++w == words_.size()) return -1;
      word = words_[w];
    }
  }

  void put(std::uint32_t row, std::size_t places) {
    if (places == 0) return;
    rows_[places].push_back(row);
    words_[places / kBits] |= std::uint64_t{1} << (places % kBits);
  }

 private:
  static constexpr std::size_t kBits = 64;
  std::vector<std::vector<std::uint32_t>> rows_;
  std::vector<std::uint64_t> words_;
};

/// Fisher and Yates' shuffle of [0, size).
std::vector<std::uint32_t> shuffled(std::size_t size, std::int64_t seed) {
  constexpr std::uint64_t kCounter = 1;  // 0 keys the orders of the epochs
  const std::uint64_t key = random_key(static_cast<std::uint64_t>(seed), RandomStream::order);
  std::vector<std::uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  for (std::size_t i = size; i > 1; --i) {
    std::swap(order[i - 1],
              order[Philox::at(key, kCounter, i).below(0, static_cast<std::uint32_t>(i))]);
  }
  return order;
}

/// [0, size) by falling length, equal lengths in shuffled order; a counting sort.
std::vector<std::uint32_t> longest_first(std::span<const std::int32_t> lengths, int sequence,
                                         std::int64_t seed) {
  // places[l]: where the next sample with l free places in an empty row goes.
  std::vector<std::uint32_t> places(static_cast<std::size_t>(sequence) + 1);
  const auto free_places = [&](std::int32_t length) {
    return static_cast<std::size_t>(sequence - length);
  };
  for (const std::int32_t length : lengths) {
    DSTRAIN_CHECK(length > 0 && length <= sequence, "a sample that fits no row");
    ++places[free_places(length) + 1];
  }
  std::partial_sum(places.begin(), places.end(), places.begin());
  std::vector<std::uint32_t> order(lengths.size());
  for (const std::uint32_t sample : shuffled(lengths.size(), seed)) {
    order[places[free_places(lengths[sample])]++] = sample;
  }
  return order;
}

}  // namespace

Packing pack(std::span<const std::int32_t> lengths, int sequence, std::int64_t seed) {
  const std::size_t size = lengths.size();
  std::vector<std::uint32_t> row_of(size);
  std::vector<std::uint32_t> counts;
  FreePlaces free(sequence);
  for (const std::uint32_t sample : longest_first(lengths, sequence, seed)) {
    const auto length = static_cast<std::size_t>(lengths[sample]);
    auto places = static_cast<std::size_t>(sequence);
    std::int64_t row = free.take(length, places);
    if (row < 0) {
      row = static_cast<std::int64_t>(counts.size());
      counts.push_back(0);
    }
    row_of[sample] = static_cast<std::uint32_t>(row);
    ++counts[static_cast<std::size_t>(row)];
    free.put(static_cast<std::uint32_t>(row), places - length);
  }
  Packing packing;
  packing.begins.push_back(0);
  for (const std::uint32_t count : counts) {
    packing.begins.push_back(packing.begins.back() + count);
    packing.max_samples = std::max(packing.max_samples, static_cast<int>(count));
  }
  packing.samples.resize(size);
  std::vector<std::uint32_t> next(packing.begins.begin(), packing.begins.end() - 1);
  for (std::size_t sample = 0; sample < size; ++sample) {
    packing.samples[next[row_of[sample]]++] = static_cast<std::uint32_t>(sample);
  }
  return packing;
}

Packing unpacked(std::size_t size) {
  Packing packing;
  packing.begins.resize(size + 1);
  packing.samples.resize(size);
  std::iota(packing.begins.begin(), packing.begins.end(), 0U);
  std::iota(packing.samples.begin(), packing.samples.end(), 0U);
  packing.max_samples = size == 0 ? 0 : 1;
  return packing;
}

}  // namespace dstrain::text
