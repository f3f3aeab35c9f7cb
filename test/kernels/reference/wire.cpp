#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/kernels/host_view.h"
#include "engine/kernels/wire/wire_math.h"
#include "test/kernels/reference/reference.h"

/// Coded blocks as their definition reads, in double.
namespace dstrain::kernels::reference {
namespace {

double largest_code(CodeFormat format) {
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

/// The smallest bf16 number that is not below x.
c10::BFloat16 bf16_above(double x) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x)) & 0xffff0000u;
  const auto below = std::bit_cast<float>(bits);
  return static_cast<c10::BFloat16>(
      static_cast<double>(below) >= x ? below : std::bit_cast<float>(bits + 0x10000u));
}

/// The block's codes and its scale, of a part that lies at `coded`.
class CodedBlock {
 public:
  CodedBlock(const std::uint8_t* coded, CodeFormat format, std::int64_t elements,
             std::int64_t block)
      : format_(format),
        codes_(const_cast<std::uint8_t*>(coded) + code_bytes(format, block * kCodeBlock)),
        scale_(reinterpret_cast<c10::BFloat16*>(const_cast<std::uint8_t*>(coded) +
                                                code_bytes(format, elements)) +
               block) {}

  [[nodiscard]] double scale() const { return static_cast<double>(static_cast<float>(*scale_)); }
  void set_scale(c10::BFloat16 scale) const { *scale_ = scale; }

  /// A number that the format has, times the scale.
  [[nodiscard]] double at(std::int64_t i) const {
    const std::uint8_t byte = codes_[code_bytes(format_, i)];
    if (format_ == CodeFormat::int8) return static_cast<std::int8_t>(byte) * scale();
    if (format_ == CodeFormat::fp8)
      return static_cast<double>(c10::detail::fp8e4m3fn_to_fp32_value(byte)) * scale();
    const int half = i % 2 == 0 ? byte % 16 : byte / 16;
    return (half < 8 ? half : half - 16) * scale();
  }
  void set(std::int64_t i, double code) const {
    std::uint8_t& byte = codes_[code_bytes(format_, i)];
    if (format_ == CodeFormat::int8) {
      byte = static_cast<std::uint8_t>(static_cast<int>(code));
    } else if (format_ == CodeFormat::fp8) {
      byte = c10::detail::fp8e4m3fn_from_fp32_value(static_cast<float>(code));
    } else {
      const int half = static_cast<int>(code) & 15;
      byte = static_cast<std::uint8_t>(i % 2 == 0 ? half : byte % 16 + 16 * half);
    }
  }

 private:
  CodeFormat format_;
  std::uint8_t* codes_;
  c10::BFloat16* scale_;
};

/// x / scale, rounded for the element at `position` in the whole.
double rounded_code(const QuantizeBlocks& a, double scaled, std::int64_t position) {
  if (a.format == CodeFormat::fp8) return scaled;
  if (!a.stochastic) return std::nearbyint(scaled);
  const std::int64_t i = position % kCodeBlock;
  const CodeBits bits = CodeBits::at(a.key, a.counter, position - i, static_cast<int>(i % 64 / 4));
  return std::floor(scaled + bits.of(static_cast<int>(i / 64 * 4 + i % 4)) / 65536.0);
}

void quantize_block(const QuantizeBlocks& a, std::int64_t part, std::int64_t block) {
  const View x(a.x, a.dtype);
  const std::int64_t start = part * a.x_stride + block * kCodeBlock;
  const CodedBlock coded(a.coded + part * a.coded_stride, a.format, a.elements, block);
  double largest = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < kCodeBlock; ++i) {
    largest = std::max(largest, std::abs(x.at(start + i)));
    finite = finite && std::isfinite(x.at(start + i));
  }
  if (!finite) {
    coded.set_scale(std::numeric_limits<float>::quiet_NaN());
  } else {
    coded.set_scale(bf16_above(std::max(largest / largest_code(a.format), 0x1p-100)));
  }
  for (std::int64_t i = 0; i < kCodeBlock; ++i) {
    const double scaled = finite ? x.at(start + i) / coded.scale() : 0;
    coded.set(i, rounded_code(a, scaled, a.first_element + start + i));
  }
}

}  // namespace

void quantize_blocks(const QuantizeBlocks& a) {
  for (std::int64_t part = 0; part < a.parts; ++part) {
    for (std::int64_t block = 0; block < a.elements / kCodeBlock; ++block)
      quantize_block(a, part, block);
  }
}

void dequantize_blocks(const DequantizeBlocks& a) {
  const View out(a.out, a.dtype);
  for (std::int64_t part = 0; part < a.parts; ++part) {
    for (std::int64_t i = 0; i < a.elements; ++i) {
      const CodedBlock coded(a.coded + part * a.coded_stride, a.format, a.elements, i / kCodeBlock);
      out.set(part * a.out_stride + i, coded.at(i % kCodeBlock));
    }
  }
}

void sum_blocks(const SumBlocks& a) {
  for (std::int64_t i = 0; i < a.elements; ++i) {
    double sum = 0;
    for (std::int64_t part = 0; part < a.parts; ++part) {
      sum += CodedBlock(a.coded + part * a.coded_stride, a.format, a.elements, i / kCodeBlock)
                 .at(i % kCodeBlock);
    }
    if (!a.add) a.sum[i] = 0;
    add_to(a.sum[i], sum);
  }
}

}  // namespace dstrain::kernels::reference
