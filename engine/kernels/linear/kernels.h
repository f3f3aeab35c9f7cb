#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>

#include "engine/kernels/dtype.h"

/// Numbers of 8 bits, products of few rows: arguments and the GPU version. The rules are in
/// engine/kernels/kernels.h.
namespace dstrain::kernels {

/// Formats of 8 bits: e4m3 (finite, largest 448) for values, e5m2 (largest 57344) for gradients.
/// Micikevicius et al. 2022, arXiv:2209.05433, sec. 3.
enum class Fp8Format { e4m3, e5m2 };
[[nodiscard]] constexpr float largest_code(Fp8Format format) {
  return format == Fp8Format::e4m3 ? 448.0f : 57344.0f;
}
/// What codes are multiplied by, for values up to `largest`. Of gradients it is a power of two:
/// their codes stand for the same numbers, down to the smallest, whether `largest` is reached or
/// only a bound.
[[nodiscard]] constexpr float code_scale(Fp8Format format, float largest) {
  constexpr float kMinAbsMax = 1e-30f;
  constexpr std::uint32_t kFraction = 0x7fffff;
  const float exact = (largest > kMinAbsMax ? largest : kMinAbsMax) / largest_code(format);
  if (format == Fp8Format::e4m3) return exact;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(exact) + kFraction) & ~kFraction);
}

/// partial [kAbsMaxPartials] = largest |x| of each part of x; nan is passed over.
struct AbsMax {
  const void* x;
  float* partial;
  std::int64_t count;
  DType dtype;
};
inline constexpr std::int64_t kAbsMaxPartials = 528;

/// x / scale in 8 bits, as rows and as columns, x read once. Where `partial` is given, scale is
/// code_scale of its largest value, and written; else it is read.
struct Quantize {
  const void* x;         ///< [rows, cols], both multiples of 16
  std::uint8_t* out;     ///< [rows, cols]; null: not wanted
  std::uint8_t* out_t;   ///< [cols, rows]; null: not wanted
  const float* partial;  ///< [kAbsMaxPartials] or null
  float* scale;          ///< [1]
  std::int64_t rows, cols;
  Fp8Format format;
  DType dtype;
  /// [quantize_partials(rows), cols], sums over kQuantizeRows rows of x each; null: not wanted.
  float* sums = nullptr;
};
inline constexpr std::int64_t kQuantizeRows = 128;
[[nodiscard]] constexpr std::int64_t quantize_partials(std::int64_t rows) {
  return (rows + kQuantizeRows - 1) / kQuantizeRows;
}

/// out [rows, outputs] = alpha * x weight^T (+ bias), sums in fp32, of up to kMaxFewRows rows: the
/// time is that of reading the weight, of which a library's products reach less where it is small.
struct FewRows {
  const void* x;       ///< [rows, depth]
  const void* weight;  ///< [outputs, depth]
  const void* bias;    ///< [outputs]; null: none
  void* out;
  std::int64_t rows, outputs, depth;  ///< depth a multiple of kFewRowsDepth
  /// Elements from a row to the next; those of x and weight multiples of 8, as their addresses are
  /// of 16 bytes.
  std::int64_t x_stride, weight_stride, out_stride;
  float alpha;
  DType dtype;  ///< of 16 bits
};
inline constexpr int kMaxFewRows = 8, kFewRowsDepth = 64;
/// More outputs are left to a library, whose products are as fast there.
inline constexpr std::int64_t kMaxFewRowsOutputs = 4096;

namespace cuda {
void few_rows(const FewRows& args, cudaStream_t stream);
void abs_max(const AbsMax& args, cudaStream_t stream);
void quantize(const Quantize& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace dstrain::kernels
