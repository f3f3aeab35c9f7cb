#include <immintrin.h>

#include <cstring>

#include "engine/data/images/resize_loops_body.h"

namespace dstrain::resize {
namespace {

/// A weight is upper * 2^kLowerBits + lower, so that products of a pixel and each part fit into the
/// instruction that adds two products of 16 bits; weights are below 2^(kWeightBits + 1). The sums
/// are the same whole numbers.
constexpr int kLowerBits = 11;

/// Taps of all outputs in the same number of pairs, with weights of 0 for those that are too many.
class TapPairs {
 public:
  TapPairs(const Taps& taps, int width) {
    int max = 0;
    for (std::size_t i = 0; i < taps.size(); ++i) max = std::max(max, taps.count(i));
    pairs_ = (max + 1) / 2;
    if (2 * pairs_ > width) return;
    const auto per_output = static_cast<std::size_t>(pairs_) * 4;
    parts_.resize(taps.size() * per_output);
    offsets_.reserve(taps.size());
    for (std::size_t i = 0; i < taps.size(); ++i) {
      const int first = std::min(taps.first[i], width - 2 * pairs_);
      const int moved = taps.first[i] - first;
      offsets_.push_back(std::ptrdiff_t{first} * 3);
      for (int t = 0; t < taps.count(i); ++t) {
        const int at = moved + t;
        std::int16_t* pair = &parts_[i * per_output + static_cast<std::size_t>(at / 2) * 4];
        const std::int32_t weight = taps.of(i)[t];
        pair[at % 2] = static_cast<std::int16_t>(weight >> kLowerBits);
        pair[2 + at % 2] = static_cast<std::int16_t>(weight & ((1 << kLowerBits) - 1));
      }
    }
  }

  /// false: the row is shorter than the taps.
  [[nodiscard]] bool fit() const { return !offsets_.empty(); }
  [[nodiscard]] int pairs() const { return pairs_; }
  [[nodiscard]] std::size_t outputs() const { return offsets_.size(); }
  /// Byte of the row at which output `i` begins to read.
  [[nodiscard]] std::ptrdiff_t offset(std::size_t i) const { return offsets_[i]; }
  /// Upper parts of both weights of each pair, then the lower ones.
  [[nodiscard]] const std::int16_t* parts() const { return parts_.data(); }

 private:
  int pairs_ = 0;
  std::vector<std::ptrdiff_t> offsets_;
  std::vector<std::int16_t> parts_;
};

[[gnu::always_inline]] inline __m256i broadcast_pair(const std::int16_t* pair) {
  std::int32_t both;
  std::memcpy(&both, pair, sizeof both);
  return _mm256_set1_epi32(both);
}

/// Two rows at once, one in each half of a register. `kPairs` of 0: taps.pairs().
template <int kPairs>
void two_rows(const std::uint8_t* a, const std::uint8_t* b, const TapPairs& taps,
              std::uint8_t* to_a, std::uint8_t* to_b) {
  const int pairs = kPairs > 0 ? kPairs : taps.pairs();
  // Red of both pixels of a pair, green, blue, as words.
  const __m256i even = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m256i odd = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
  const std::int16_t* part = taps.parts();
  for (std::size_t i = 0; i < taps.outputs(); ++i, to_a += 3, to_b += 3) {
    const std::uint8_t *from_a = a + taps.offset(i), *from_b = b + taps.offset(i);
    __m256i upper = _mm256_setzero_si256(), lower = _mm256_set1_epi32(kHalf);
    for (int p = 0; p < pairs; p += 2, from_a += 12, from_b += 12) {
      const __m256i bytes = _mm256_inserti128_si256(
          _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from_a))),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(from_b)), 1);
      const auto add = [&](const __m256i& order) {
        const __m256i words = _mm256_shuffle_epi8(bytes, order);
        upper = _mm256_add_epi32(upper, _mm256_madd_epi16(words, broadcast_pair(part)));
        lower = _mm256_add_epi32(lower, _mm256_madd_epi16(words, broadcast_pair(part + 2)));
        part += 4;
      };
      add(even);
      if (p + 1 < pairs) add(odd);
    }
    const __m256i sum = _mm256_srai_epi32(
        _mm256_add_epi32(_mm256_slli_epi32(upper, kLowerBits), lower), kWeightBits);
    const __m256i words = _mm256_packs_epi32(sum, sum);
    const __m256i made = _mm256_packus_epi16(words, words);
    const int made_a = _mm256_extract_epi32(made, 0), made_b = _mm256_extract_epi32(made, 4);
    // Four bytes at once, of which the next output writes the last one over.
    const std::size_t size = i + 1 < taps.outputs() ? 4 : 3;
    std::memcpy(to_a, &made_a, size);
    std::memcpy(to_b, &made_b, size);
  }
}

}  // namespace

template <>
void Loops<Avx2>::rgb_columns(const std::uint8_t* from, int width, std::size_t rows,
                              const Taps& taps, std::uint8_t* to) {
  const TapPairs pairs(taps, width);
  constexpr int kMinWidth = 4;  // a register may reach into the next row, not beyond it
  const bool wide = pairs.fit() && width >= kMinWidth;
  const auto convert = pairs.pairs() == 1   ? two_rows<1>
                       : pairs.pairs() == 2 ? two_rows<2>
                       : pairs.pairs() == 3 ? two_rows<3>
                                            : two_rows<0>;
  const std::ptrdiff_t stride = std::ptrdiff_t{width} * 3;
  const auto made = static_cast<std::ptrdiff_t>(taps.size()) * 3;
  for (std::size_t y = 0; y < rows; y += 2, from += 2 * stride, to += 2 * made) {
    const bool pair = y + 1 < rows;
    const std::uint8_t* next = pair ? from + stride : from;
    std::uint8_t* to_next = pair ? to + made : to;
    if (wide) {
      convert(from, next, pairs, to, to_next);
    } else {
      two_rgb_rows(from, next, taps, to, to_next);
    }
  }
}

template struct Loops<Avx2>;

}  // namespace dstrain::resize
