#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/base/units.h"
#include "engine/kernels/wire/kernels.h"

/// Numbers as they travel between ranks, 4 to 8 bits each (kernels.h says how they are coded).
/// Tensors are matrices [parts, elements], elements a multiple of kCodeBlock; rows are dense and
/// lie a multiple of 16 bytes apart, so that they may be parts of something larger. Coded parts are
/// uint8 [parts, coded_bytes(format, elements) or more]. One kernel on the current stream, or on
/// the CPU the same bits. Wrong shapes are Error{internal}.
namespace dstrain::wire {

/// Where the random bits of stochastic rounding come from: they are a function of these and of an
/// element's position, so that a run which is resumed or repeated gets the same.
struct RandomPlace {
  std::uint64_t seed = 0;
  std::int64_t step = 0;           ///< [0, 2^32)
  std::int64_t micro_batch = 0;    ///< [0, 2^16)
  std::int64_t node = 0;           ///< [0, 2^16): of the rank that rounds, so that errors of nodes
                                   ///< do not add up
  std::int64_t first_element = 0;  ///< of x in the whole, a multiple of kCodeBlock
};

/// x fp32, bf16 or fp16, each value to the nearest that the format has.
void quantize(const at::Tensor& x, const at::Tensor& coded, CodeFormat format);
/// The same in int4, up or down at random and right on average; rows of x lie in the whole as they
/// lie in memory, a multiple of kCodeBlock elements apart.
void quantize_randomly(const at::Tensor& x, const at::Tensor& coded, const RandomPlace& place);
/// out fp32, bf16 or fp16.
void dequantize(const at::Tensor& coded, const at::Tensor& out, CodeFormat format);
/// sum [elements] fp32 = part 0 + part 1 + ... in this order, or, to `add`, that more.
void sum(const at::Tensor& coded, const at::Tensor& sum, CodeFormat format, bool add);

}  // namespace dstrain::wire
