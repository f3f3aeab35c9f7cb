#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/kernels/parameter.h"

/// Matrices in 4 bits: codes and maxima as bitsandbytes makes them, bit for bit but for the offset
/// of coded maxima, a mean whose last bit is of the order of its sum.
namespace dstrain {

/// A whole tensor, flattened.
struct Nf4Codes {
  std::vector<std::uint8_t> codes;  ///< two elements a byte, the first in the upper half
  std::vector<float> maxima;        ///< of blocks of kNf4Block
};
/// Maxima as codes of 8 bits.
struct Nf4Maxima {
  std::vector<std::uint8_t> codes;
  std::vector<float> maxima;  ///< of blocks of kNf4Maxima
  float offset = 0;
};

/// A tensor as a file has it.
struct Nf4Tensor {
  Nf4Codes codes;  ///< without maxima where these are codes
  std::optional<Nf4Maxima> maxima = {};
};

/// `values`: whole blocks.
[[nodiscard]] Nf4Codes nf4_codes(std::span<const float> values);
/// `offset`: none: the mean.
[[nodiscard]] Nf4Maxima nf4_maxima(std::span<const float> maxima,
                                   std::optional<float> offset = std::nullopt);
/// Values of the 8-bit codes (Dettmers 2015, arXiv:1511.04561, sec. 2).
[[nodiscard]] std::span<const float> nf4_maxima_values();

/// The maximum that such a code means.
[[nodiscard]] float nf4_maximum(std::uint8_t code, float maximum_of_maxima, float offset);

/// Writes what a parameter that rests as `storage` holds of its part `index`, whose whole tensor is
/// `whole`; `maxima` are read where they are coded.
void store_nf4(const Nf4Storage& storage, std::size_t index, const Nf4Codes& whole,
               const Nf4Maxima& maxima, std::span<std::uint8_t> stored);

/// What products see of a matrix that rests in 4 bits, before the compute type rounds it.
[[nodiscard]] std::vector<float> nf4_rounded(std::span<const float> values, bool double_coded);

namespace ops {
/// What products with `weight` take, [N, K] like x in dtype and device.
[[nodiscard]] at::Tensor decode_nf4(const Parameter& weight, const at::Tensor& x);
}  // namespace ops

}  // namespace dstrain
