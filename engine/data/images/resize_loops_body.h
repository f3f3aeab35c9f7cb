#pragma once

#include <algorithm>
#include <cstring>

#include "engine/data/images/resize_loops.h"

namespace dstrain::resize {
namespace {

[[gnu::always_inline]] inline std::uint8_t to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

/// Columns of two rows, for any vector unit; a byte behind each may be read.
inline void two_rgb_rows(const std::uint8_t* a, const std::uint8_t* b, const Taps& taps,
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
    const Words whole = sum >> kWeightBits;
    const Words positive = whole > 0 ? whole : Words{};
    const Words max = Words{} + 255;
    const auto made = __builtin_convertvector(positive < max ? positive : max, Bytes);
    // Four bytes at once, of which the next output writes the last one over.
    const std::size_t size = i + 1 < taps.size() ? 4 : 3;
    std::memcpy(to_a, &made, size);
    std::memcpy(to_b, reinterpret_cast<const char*>(&made) + 4, size);
    to_a += 3;
    to_b += 3;
  }
}

}  // namespace

template <class Unit>
void Loops<Unit>::rgb_columns(const std::uint8_t* from, int width, std::size_t rows,
                              const Taps& taps, std::uint8_t* to) {
  const std::size_t stride = static_cast<std::size_t>(width) * 3, made = taps.size() * 3;
  for (std::size_t y = 0; y < rows; y += 2) {
    const bool pair = y + 1 < rows;
    const std::uint8_t* a = from + y * stride;
    std::uint8_t* to_a = to + y * made;
    two_rgb_rows(a, pair ? a + stride : a, taps, to_a, pair ? to_a + made : to_a);
  }
}

template <class Unit>
void Loops<Unit>::columns(const std::uint8_t* row, int channels, const Taps& taps,
                          std::uint8_t* to) {
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

template <class Unit>
void Loops<Unit>::rows(const std::uint8_t* from, std::ptrdiff_t stride, const std::int32_t* weights,
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

}  // namespace dstrain::resize
