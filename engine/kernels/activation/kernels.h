#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/activation/gate.h"
#include "engine/kernels/dtype.h"

/// Activations with their bias, dropout, and sums over rows: arguments, the GPU version and the
/// reference. The rules are in engine/kernels/kernels.h.
namespace dstrain::kernels {

/// x Phi(x), exact, by 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), or quick, by
/// x sigmoid(kQuickGelu x). Hendrycks & Gimpel 2016, arXiv:1606.08415.
enum class Gelu { erf, tanh, quick };
inline constexpr float kQuickGelu = 1.702f;

/// y = gelu(z + bias). z is the GEMM's output without bias: adding it here and again in backward
/// costs nothing, and z is written once.
struct BiasGelu {
  const void* z;     ///< [rows, cols]
  const void* bias;  ///< [cols]
  void* y;           ///< [rows, cols]
  std::int64_t rows, cols;
  DType dtype;
  Gelu kind = Gelu::erf;
};

/// grad_z = grad_y * gelu'(z + bias), and grad_bias += its sum over rows (before rounding); y once
/// more in the same pass.
struct BiasGeluBackward {
  const void* z;
  const void* bias;
  const void* grad_y;
  void* grad_z;      ///< may alias grad_y
  float* grad_bias;  ///< null: not wanted
  float* partial;    ///< scratch, [column_partials(rows, cols), cols]; null without grad_bias
  std::int64_t rows, cols;
  DType dtype;
  Gelu kind = Gelu::erf;
  void* y = nullptr;  ///< gelu(z + bias); null: not wanted. Equal to what bias_gelu gives.
};

/// y = scale x, column by column.
struct ColumnScale {
  const void* x;      ///< [rows, cols]
  const void* scale;  ///< [cols]
  void* y;            ///< [rows, cols]; may alias x
  std::int64_t rows, cols;
  DType dtype;
};

/// grad_x = scale grad_y, and grad_scale += the sum of x grad_y over rows.
struct ColumnScaleBackward {
  const void* x;
  const void* scale;
  const void* grad_y;
  void* grad_x;       ///< may alias grad_y
  float* grad_scale;  ///< [cols]
  float* partial;     ///< scratch, [column_partials(rows, cols), cols]
  std::int64_t rows, cols;
  DType dtype;
};

/// sum += sum of x over rows.
struct ColumnSum {
  const void* x;   ///< [rows, cols]
  float* sum;      ///< [cols]
  float* partial;  ///< scratch, [column_partials(rows, cols), cols]
  std::int64_t rows, cols;
  DType dtype;
};
[[nodiscard]] std::int64_t column_partials(std::int64_t rows, std::int64_t cols);

/// sum += sum of partial over rows, few of them.
struct PartialSums {
  const float* partial;  ///< [rows, cols]
  float* sum;            ///< [cols]
  std::int64_t rows, cols;
};

/// h = act(gate) * up; one rounding. Shazeer 2020, arXiv:2002.05202, eq. 5.
struct Swiglu {
  const void* gate_up;  ///< [rows, 2 cols]: of each row gate, then up
  void* h;              ///< [rows, cols]
  std::int64_t rows, cols;
  DType dtype;
  /// [kAbsMaxPartials], largest |h|, rounded, of each part of h; null: not wanted. With it cols is
  /// a multiple of 8.
  float* partial = nullptr;
  /// [kAbsMaxPartials], largest factor by which backward may multiply an element of h's gradient,
  /// of each part: gate_slope |up| for the gate, |act(gate)| for up. Null: not wanted; only with
  /// `partial`.
  float* gains = nullptr;
  GateActivation gate = GateActivation::silu;
};
/// Above the largest derivative of the activation, 1.0998 of silu and 1.1290 of GELU.
[[nodiscard]] constexpr float gate_slope(GateActivation gate) {
  return gate == GateActivation::silu ? 1.1f : 1.13f;
}

/// The gradient of gate and up, and h once more, in one pass.
struct SwigluBackward {
  const void* gate_up;
  const void* grad_h;
  void* grad_gate_up;  ///< may alias gate_up
  void* h;             ///< bit for bit what forward gave; null: not wanted
  std::int64_t rows, cols;
  DType dtype;
  GateActivation gate = GateActivation::silu;
};

/// What SwigluBackward, then Quantize of grad_gate_up in e5m2 and of h in e4m3 give, bit for bit,
/// without the tensors between. The scale is not of the largest gradient, which another read of
/// both inputs would have to find, but of its bound, the largest |grad_h| times the largest gain:
/// normal numbers of e5m2 span 30 powers of two, of which a bound that is loose takes some that lie
/// far below the largest.
struct SwigluCodes {
  const void* gate_up;
  const void* grad_h;
  const float* maxima;      ///< [kAbsMaxPartials] of AbsMax of grad_h
  const float* gains;       ///< [kAbsMaxPartials] of Swiglu
  float* scale;             ///< [1], written
  std::uint8_t* out;        ///< [rows, 2 cols]; null: not wanted
  std::uint8_t* out_t;      ///< [2 cols, rows]; null: not wanted
  const float* h_scale;     ///< [1], read; null without h_t
  std::uint8_t* h_t;        ///< [cols, rows]; null: not wanted
  std::int64_t rows, cols;  ///< multiples of 16
  DType dtype;
  GateActivation gate = GateActivation::silu;
};

/// y = x / (1 - share) or 0, as DropDraw has it (drop_draw.h). x may be a part of a larger tensor,
/// whose elements are counted: row r of x is of its row rows[r], and column c of its column
/// first_column
/// + c.
struct Dropout {
  const void* x;
  void* y;  ///< may alias x
  std::int64_t count;
  const std::int64_t* seed;  ///< [1], where x is; with `place` it makes the key (dropout_key)
  std::uint64_t place;
  float share;
  DType dtype;
  const std::int32_t* rows = nullptr;  ///< [count / columns]; null: the same
  std::int64_t columns = 0;
  std::int64_t whole_columns = 0;  ///< of the larger tensor; 0: as many
  std::int64_t first_column = 0;

  /// x is the whole tensor.
  [[nodiscard]] constexpr bool whole_tensor() const {
    return rows == nullptr && whole_columns == 0;
  }
  /// Element of the larger tensor.
  [[nodiscard]] constexpr std::int64_t whole(std::int64_t element) const {
    if (whole_tensor()) return element;
    const std::int64_t row = element / columns, wide = whole_columns == 0 ? columns : whole_columns;
    return (rows == nullptr ? row : rows[row]) * wide + first_column + element % columns;
  }
  /// `pack` elements from a multiple of `pack` on lie in one row, from a multiple of it on.
  [[nodiscard]] constexpr bool in_packs(std::int64_t pack) const {
    return whole_tensor() ||
           (columns % pack == 0 && whole_columns % pack == 0 && first_column % pack == 0);
  }
};

namespace cuda {
void bias_gelu(const BiasGelu& args, cudaStream_t stream);
void bias_gelu_backward(const BiasGeluBackward& args, cudaStream_t stream);
void column_scale(const ColumnScale& args, cudaStream_t stream);
void column_scale_backward(const ColumnScaleBackward& args, cudaStream_t stream);
void column_sum(const ColumnSum& args, cudaStream_t stream);
void partial_sums(const PartialSums& args, cudaStream_t stream);
void swiglu(const Swiglu& args, cudaStream_t stream);
void swiglu_backward(const SwigluBackward& args, cudaStream_t stream);
void swiglu_codes(const SwigluCodes& args, cudaStream_t stream);
void dropout(const Dropout& args, cudaStream_t stream);
}  // namespace cuda

namespace reference {
void dropout(const Dropout& args);
}  // namespace reference

}  // namespace dstrain::kernels
