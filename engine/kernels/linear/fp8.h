#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/dtype.h"
#include "engine/kernels/linear/kernels.h"
#include "engine/kernels/parameter.h"

/// Tensors in FP8 with one factor for all elements, taken from the tensor at hand
/// (kernels::code_scale), rounded to the nearest code. Micikevicius et al. 2022, arXiv:2209.05433.
namespace dstrain::ops {

struct Quantized {
  at::Tensor rows = {};     ///< [R, C]; undefined where not wanted
  at::Tensor columns = {};  ///< [C, R]; likewise
  at::Tensor scale = {};    ///< fp32 scalar by which codes are multiplied
  at::Tensor sums = {};     ///< fp32 [parts, C], sums over parts of the rows of x; likewise
};

enum class Sides { rows, columns, both };

/// Room for codes of [rows, cols] and their scale, beside `like`.
[[nodiscard]] Quantized empty_codes(const at::Tensor& like, std::int64_t rows, std::int64_t cols,
                                    kernels::Fp8Format format, Sides sides);
/// Where they lie; null for an undefined tensor.
[[nodiscard]] std::uint8_t* code_bytes(const at::Tensor& codes);

/// What is known of a tensor, so that it need not be searched for its largest value.
struct Known {
  at::Tensor scale = {};   ///< that of its codes
  at::Tensor maxima = {};  ///< largest absolute values of its parts, as in Measured (ops.h)
};

/// [kAbsMaxPartials], the largest absolute values of parts of x, on a GPU.
[[nodiscard]] at::Tensor maxima_of(const at::Tensor& x);

/// x [R, C], dense. Codes and scale are the same with and without `known.maxima`.
[[nodiscard]] Quantized quantize(const at::Tensor& x, kernels::Fp8Format format, Sides sides,
                                 const Known& known = {});

/// The same, and its sums, which cost no further read. On a GPU only.
[[nodiscard]] Quantized quantize_and_sum(const at::Tensor& x, kernels::Fp8Format format,
                                         Sides sides, const Known& known = {});

/// The weight's value as matrix [N, K] in e4m3; kept from one call to the next while
/// `weight.version` counts. `scale` is that of the same value's codes, where they were made before.
[[nodiscard]] Quantized quantize_weight(Parameter& weight, const at::Tensor& matrix, Sides sides,
                                        const at::Tensor& scale = {});

/// Whether products of `rows` rows like `x` with the weight run in FP8: it asks for it, all three
/// sizes are multiples of 16 (cuBLASLt has nothing else), and the compute dtype has 16 bits (on the
/// CPU, which only rounds as FP8 does, any).
[[nodiscard]] bool runs_in_fp8(const Parameter& weight, const at::Tensor& x);

}  // namespace dstrain::ops
