#pragma once

#include <cstddef>
#include <cstdint>
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

/// Bytes behind the last row that rgb_columns() may read.
inline constexpr std::size_t kSlack = 16;

struct Plain {};
struct Avx2 {};

/// Defined in resize_loops_body.h alone, which only the files of the vector units include: what is
/// inlined elsewhere would be compiled for none.
template <class Unit>
struct Loops {
  /// Columns of RGB rows of `width` pixels, one after the other, behind which kSlack bytes may be
  /// read.
  static void rgb_columns(const std::uint8_t* from, int width, std::size_t rows, const Taps& taps,
                          std::uint8_t* to);
  /// Columns of a row of any number of channels.
  static void columns(const std::uint8_t* row, int channels, const Taps& taps, std::uint8_t* to);
  /// One output row of `values` bytes from `count` rows that are `stride` bytes apart.
  static void rows(const std::uint8_t* from, std::ptrdiff_t stride, const std::int32_t* weights,
                   int count, std::ptrdiff_t values, std::uint8_t* to);
};

template <>
void Loops<Avx2>::rgb_columns(const std::uint8_t* from, int width, std::size_t rows,
                              const Taps& taps, std::uint8_t* to);

extern template struct Loops<Plain>;
extern template struct Loops<Avx2>;

}  // namespace dstrain::resize
