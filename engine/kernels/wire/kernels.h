#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"
#include "engine/mesh/coded_group.h"

/// Numbers as they travel between ranks: blocks of 128 elements, each with a scale of its own.
/// Wang et al. 2023 (ZeRO++), arXiv:2306.10209, sec. 3.1 and 3.3. The rules are in
/// engine/kernels/kernels.h; beyond them, GPU and CPU give equal bits (but for those of a nan).
namespace dstrain::kernels {

/// codes = x / scale, rounded; scale = the block's largest magnitude over the format's, rounded up
/// to bf16 and at least 2^-100. A block with a value that is not finite has a nan for its scale and
/// zeros for its codes; one within 2^-7 of the largest number of the type may decode to infinity.
struct QuantizeBlocks {
  const void* x;        ///< parts of `elements`
  std::uint8_t* coded;  ///< parts of coded_bytes(format, elements)
  std::int64_t parts, elements;
  std::int64_t x_stride;      ///< elements between parts, a multiple of 8
  std::int64_t coded_stride;  ///< bytes between parts, a multiple of 16
  CodeFormat format;
  DType dtype;
  /// int4 only: up with the probability of the part that is cut off, else to the nearest, ties to
  /// even. Random bits are a function of `key`, `counter`, and of first_element + part * x_stride +
  /// i, the element's position in the whole.
  bool stochastic = false;
  std::uint64_t key = 0, counter = 0;
  std::int64_t first_element = 0;  ///< a multiple of kCodeBlock, as x_stride then
};

/// out = codes * scale, one rounding.
struct DequantizeBlocks {
  const std::uint8_t* coded;  ///< parts of coded_bytes(format, elements)
  void* out;                  ///< parts of `elements`
  std::int64_t parts, elements;
  std::int64_t coded_stride;  ///< bytes between parts, a multiple of 16
  std::int64_t out_stride;    ///< elements between parts, a multiple of 8
  CodeFormat format;
  DType dtype;
};

/// sum (+)= part 0 + part 1 + ... in this order, in fp32; the parts are of the same elements.
struct SumBlocks {
  const std::uint8_t* coded;  ///< parts of coded_bytes(format, elements)
  float* sum;                 ///< [elements]
  std::int64_t parts, elements;
  std::int64_t coded_stride;  ///< bytes between parts, a multiple of 16
  CodeFormat format;
  bool add;  ///< to what `sum` holds; else that is overwritten
};

namespace cuda {
void quantize_blocks(const QuantizeBlocks& args, cudaStream_t stream);
void dequantize_blocks(const DequantizeBlocks& args, cudaStream_t stream);
void sum_blocks(const SumBlocks& args, cudaStream_t stream);
}  // namespace cuda

/// For CPU ranks, divided among ATen's threads.
namespace cpu {
void quantize_blocks(const QuantizeBlocks& args);
void dequantize_blocks(const DequantizeBlocks& args);
void sum_blocks(const SumBlocks& args);
}  // namespace cpu

}  // namespace dstrain::kernels
