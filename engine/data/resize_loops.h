#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

/// The inner loops of a resize, compiled for more than one vector unit; whole numbers, so the bits
/// are the same.
namespace dstrain::resize {

inline constexpr int kWeightBits =
    22;  ///< of a weight's fraction: 8 bits of pixel and 2 of overshoot fit
inline constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

/// What the outputs of an axis read: source positions from `first` on, with weights that add up to
/// 2^kWeightBits.
struct Taps {
  std::vector<int> first;
  std::vector<int> begin = {0};  ///< of output i: weights [begin[i], begin[i + 1])
  std::vector<std::int32_t> weights;

  [[nodiscard]] std::size_t size() const { return first.size(); }
  [[nodiscard]] int count(std::size_t i) const { return begin[i + 1] - begin[i]; }
  [[nodiscard]] const std::int32_t* of(std::size_t i) const {
    return &weights[static_cast<std::size_t>(begin[i])];
  }
};

struct Plain {};
struct Avx2 {};

template <class Unit>
struct Loops {
  [[gnu::always_inline]] static std::uint8_t to_byte(std::int32_t sum) {
    return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
  }

  /// Columns of two RGB rows at once; a row is followed by a byte that may be read. `first` is the
  /// column at which the rows begin.
  static void rgb_columns(const std::uint8_t* a, const std::uint8_t* b, const Taps& taps,
                          std::uint8_t* to_a, std::uint8_t* to_b) {
    using Bytes = std::uint8_t __attribute__((vector_size(8)));
    using Words = std::int32_t __attribute__((vector_size(32)));
    for (std::size_t i = 0; i < taps.size(); ++i) {
      const std::int32_t* weights = taps.of(i);
      const std::ptrdiff_t offset = std::ptrdiff_t{taps.first[i]} * 3;
      const std::uint8_t *from_a = a + offset, *from_b = b + offset;
      Words sum = {kHalf, kHalf, kHalf, kHalf, kHalf, kHalf, kHalf, kHalf};
      for (int t = 0; t < taps.count(i); ++t, from_a += 3, from_b += 3) {
        Bytes bytes;
        std::memcpy(&bytes, from_a, 4);
        std::memcpy(reinterpret_cast<char*>(&bytes) + 4, from_b, 4);
        sum += __builtin_convertvector(bytes, Words) * weights[t];
      }
      for (int c = 0; c < 3; ++c) {
        *to_a++ = to_byte(sum[c]);
        *to_b++ = to_byte(sum[c + 4]);
      }
    }
  }

  /// Columns of a row of any number of channels.
  static void columns(const std::uint8_t* row, int channels, const Taps& taps, std::uint8_t* to) {
    for (std::size_t i = 0; i < taps.size(); ++i) {
      const std::int32_t* weights = taps.of(i);
      for (int c = 0; c < channels; ++c) {
        const std::uint8_t* from = row + std::ptrdiff_t{taps.first[i]} * channels + c;
        std::int32_t sum = kHalf;
        for (int t = 0; t < taps.count(i); ++t)
          sum += weights[t] * from[std::ptrdiff_t{t} * channels];
        *to++ = to_byte(sum);
      }
    }
  }

  /// One output row of `values` bytes from `count` rows that are `stride` bytes apart.
  static void rows(const std::uint8_t* from, std::ptrdiff_t stride, const std::int32_t* weights,
                   int count, std::ptrdiff_t values, std::uint8_t* to) {
    constexpr std::ptrdiff_t kBlock = 64;
    std::int32_t sums[kBlock];
    std::ptrdiff_t at = 0;
    for (; at + kBlock <= values; at += kBlock) {
      std::fill_n(sums, kBlock, kHalf);
      for (int t = 0; t < count; ++t) {
        const std::uint8_t* row = from + t * stride + at;
        for (std::ptrdiff_t i = 0; i < kBlock; ++i) sums[i] += weights[t] * row[i];
      }
      for (std::ptrdiff_t i = 0; i < kBlock; ++i) to[at + i] = to_byte(sums[i]);
    }
    for (; at < values; ++at) {
      std::int32_t sum = kHalf;
      for (int t = 0; t < count; ++t) sum += weights[t] * from[t * stride + at];
      to[at] = to_byte(sum);
    }
  }
};

extern template struct Loops<Plain>;
extern template struct Loops<Avx2>;

}  // namespace dstrain::resize
