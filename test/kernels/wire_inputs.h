#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "engine/kernels/wire/wire.h"
#include "test/kernels/tensors.h"

/// What the tests of coded blocks share, on the CPU and on a GPU.
namespace dstrain::test {

inline constexpr std::array kCodeFormats = {CodeFormat::int8, CodeFormat::fp8, CodeFormat::int4};
inline double largest_of(CodeFormat format) {
  switch (format) {
    case CodeFormat::int8:
      return 127;
    case CodeFormat::fp8:
      return 448;
    case CodeFormat::int4:
      return 7;
  }
  return 0;
}

inline const std::vector<std::string> kFiniteInputs = {
    "random", "of all magnitudes", "constant", "zero", "one outlier", "ties", "tiny", "subnormal"};
inline const std::vector<std::string> kNonFiniteInputs = {"infinity", "nan"};

/// fp32 [rows, elements].
inline at::Tensor wire_input(const std::string& kind, std::int64_t rows, std::int64_t elements) {
  Random random(17);
  const at::Tensor normal = random({rows, elements});
  if (kind == "of all magnitudes") return normal * (random({rows, elements}) * 8).exp();
  if (kind == "constant") return at::full({rows, elements}, -0.3, at::kFloat);
  if (kind == "zero") return at::zeros({rows, elements});
  if (kind == "ties")  // halves, of which the largest is a code of each format's scale 1
    return at::arange(rows * elements, at::kFloat).remainder(15).sub(7).view({rows, elements}) / 2;
  if (kind == "tiny") return normal * 1e-31;
  if (kind == "subnormal") return normal * 1e-41;
  at::Tensor x = normal.clone();
  const auto put = [&](float value) { x.view({-1})[x.numel() / 2 + 5] = value; };
  if (kind == "one outlier") put(-1e6);
  if (kind == "infinity") put(-std::numeric_limits<float>::infinity());
  if (kind == "nan") put(std::numeric_limits<float>::quiet_NaN());
  return x;
}

/// The same in `type`, where what is finite decodes to finite numbers of that type.
inline at::Tensor wire_input(const std::string& kind, std::int64_t rows, std::int64_t elements,
                             at::ScalarType type) {
  const at::Tensor x = wire_input(kind, rows, elements);
  const bool finite = x.isfinite().all().item<bool>();
  return (type == at::kHalf && finite ? x.clamp(-6e4, 6e4) : x).to(type);
}

/// Largest magnitude of each block, at every element of it.
inline at::Tensor block_largest(const at::Tensor& x) {
  const at::Tensor blocks = x.to(at::kDouble).contiguous().view({-1, kCodeBlock});
  return blocks.abs().amax(1, true).expand_as(blocks).reshape(x.sizes());
}

inline at::Tensor coded_rows(const at::Tensor& x, CodeFormat format) {
  return at::zeros({x.size(0), coded_bytes(format, x.size(1))}, x.options().dtype(at::kByte));
}
inline at::Tensor quantized(const at::Tensor& x, CodeFormat format) {
  at::Tensor coded = coded_rows(x, format);
  wire::quantize(x, coded, format);
  return coded;
}
inline at::Tensor randomly_quantized(const at::Tensor& x, const wire::RandomPlace& place) {
  at::Tensor coded = coded_rows(x, CodeFormat::int4);
  wire::quantize_randomly(x, coded, place);
  return coded;
}
inline at::Tensor dequantized(const at::Tensor& coded, std::int64_t elements, CodeFormat format,
                              at::ScalarType dtype = at::kFloat) {
  at::Tensor out = at::empty({coded.size(0), elements}, coded.options().dtype(dtype));
  wire::dequantize(coded, out, format);
  return out;
}

}  // namespace dstrain::test
