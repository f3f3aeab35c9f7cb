#include "engine/kernels/linear/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "engine/base/error.h"
#include "engine/kernels/linear/kernels.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using kernels::Fp8Format;

at::ScalarType dtype_of(Fp8Format format) {
  return format == Fp8Format::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

Quantized quantize_cpu(const at::Tensor& x, Fp8Format format, Sides sides, const Known& known) {
  const double largest = kernels::largest_code(format);
  const at::Tensor x32 = x.to(at::kFloat);
  Quantized out{.scale = known.scale};
  if (!known.scale.defined()) {
    const at::Tensor maxima = known.maxima.defined() ? known.maxima : x32.abs();
    out.scale = at::full({}, kernels::code_scale(format, maxima.max().item<float>()),
                         x.options().dtype(at::kFloat));
  }
  const at::Tensor codes =
      (x32 * out.scale.reciprocal()).clamp(-largest, largest).to(dtype_of(format));
  if (sides != Sides::columns) out.rows = codes;
  if (sides != Sides::rows) out.columns = codes.t().contiguous();
  return out;
}

Quantized codes_of_scale(const at::Tensor& like, std::int64_t rows, std::int64_t cols,
                         Fp8Format format, Sides sides, const at::Tensor& scale) {
  const auto codes = like.options().dtype(dtype_of(format));
  Quantized out{.scale = scale};
  if (sides != Sides::columns) out.rows = at::empty({rows, cols}, codes);
  if (sides != Sides::rows) out.columns = at::empty({cols, rows}, codes);
  return out;
}

}  // namespace

Quantized empty_codes(const at::Tensor& like, std::int64_t rows, std::int64_t cols,
                      Fp8Format format, Sides sides) {
  return codes_of_scale(like, rows, cols, format, sides, scratch(like, {}));
}

at::Tensor maxima_of(const at::Tensor& x) {
  at::Tensor maxima = scratch(x, {kernels::kAbsMaxPartials});
  kernels::cuda::abs_max({.x = x.const_data_ptr(),
                          .partial = maxima.mutable_data_ptr<float>(),
                          .count = x.numel(),
                          .dtype = kernel_dtype(x)},
                         current_stream());
  return maxima;
}

std::uint8_t* code_bytes(const at::Tensor& codes) {
  return codes.defined() ? static_cast<std::uint8_t*>(codes.mutable_data_ptr()) : nullptr;
}

namespace {

Quantized quantize_cuda(const at::Tensor& x, Fp8Format format, Sides sides, const Known& known,
                        bool sum) {
  const std::int64_t rows = x.size(0), cols = x.size(1);
  Quantized out = codes_of_scale(x, rows, cols, format, sides,
                                 known.scale.defined() ? known.scale : scratch(x, {}));
  at::Tensor maxima = known.maxima;
  if (!known.scale.defined() && !maxima.defined()) maxima = maxima_of(x);
  if (sum) out.sums = scratch(x, {kernels::quantize_partials(rows), cols});
  kernels::cuda::quantize(
      {.x = x.const_data_ptr(),
       .out = code_bytes(out.rows),
       .out_t = code_bytes(out.columns),
       .partial = known.scale.defined() ? nullptr : maxima.const_data_ptr<float>(),
       .scale = out.scale.mutable_data_ptr<float>(),
       .rows = rows,
       .cols = cols,
       .format = format,
       .dtype = kernel_dtype(x),
       .sums = sum ? out.sums.mutable_data_ptr<float>() : nullptr},
      current_stream());
  return out;
}

}  // namespace

Quantized quantize(const at::Tensor& x, Fp8Format format, Sides sides, const Known& known) {
  return x.is_cuda() ? quantize_cuda(x, format, sides, known, /*sum=*/false)
                     : quantize_cpu(x, format, sides, known);
}

Quantized quantize_and_sum(const at::Tensor& x, Fp8Format format, Sides sides, const Known& known) {
  DSTRAIN_CHECK(x.is_cuda(), "quantize_and_sum on the CPU");
  return quantize_cuda(x, format, sides, known, /*sum=*/true);
}

Quantized quantize_weight(Parameter& weight, const at::Tensor& matrix, Sides sides,
                          const at::Tensor& scale) {
  if (weight.version == 0) return quantize(matrix, Fp8Format::e4m3, sides, {.scale = scale});
  Fp8Copies& copies = weight.fp8_copies;
  if (copies.version != weight.version) {
    copies = {};  // first, so that memory is not held twice
    const Quantized made = quantize(matrix, Fp8Format::e4m3, Sides::both);
    copies = {made.rows, made.columns, made.scale, weight.version};
  }
  return {copies.rows, copies.columns, copies.scale};
}

bool runs_in_fp8(const Parameter& weight, const at::Tensor& x) {
  const std::int64_t outputs = weight.shape.empty() ? 0 : weight.shape.front();
  return weight.fp8 && outputs > 0 && x.size(0) > 0 && x.size(0) % 16 == 0 && outputs % 16 == 0 &&
         (weight.numel() / outputs) % 16 == 0 && (!x.is_cuda() || x.element_size() == 2);
}

at::Tensor maxima_for(const Parameter& weight, const at::Tensor& x) {
  if (!x.is_cuda() || !runs_in_fp8(weight, x)) return {};
  return scratch(x, {kernels::kAbsMaxPartials});
}

}  // namespace dstrain::ops
