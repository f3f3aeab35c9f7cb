#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"

/// Numbers of 8 bits: arguments, the GPU version and the reference. The rules are in
/// engine/kernels/kernels.h.
namespace dstrain::kernels {

/// Formats of 8 bits: e4m3 (finite, largest 448) for values, e5m2 (largest 57344) for gradients.
/// Micikevicius et al. 2022, arXiv:2209.05433, sec. 3.
enum class Fp8Format { e4m3, e5m2 };

/// partial [kAbsMaxPartials] = largest |x| of each part of x; nan is passed over.
struct AbsMax {
  const void* x;
  float* partial;
  std::int64_t count;
  DType dtype;
};
inline constexpr std::int64_t kAbsMaxPartials = 528;

/// x / scale in 8 bits, as rows and as columns, x read once. Where `partial` is given, scale is its
/// largest value (1e-30 at least) over the format's largest, and written; else it is read.
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

namespace cuda {
void abs_max(const AbsMax& args, cudaStream_t stream);
void quantize(const Quantize& args, cudaStream_t stream);
}  // namespace cuda

namespace reference {
void abs_max(const AbsMax& args);
void quantize(const Quantize& args);
}  // namespace reference

}  // namespace dstrain::kernels
