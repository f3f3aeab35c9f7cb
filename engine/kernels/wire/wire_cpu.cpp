#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Half.h>
#include <c10/util/TypeCast.h>

#include <algorithm>
#include <array>

#include "engine/kernels/wire/kernels.h"
#include "engine/kernels/wire/wire_math.h"

/// Coded blocks on the CPU, block by block through fp32 on the stack.
namespace dstrain::kernels::cpu {
namespace {

using Block = std::array<float, kCodeBlock>;

/// Calls body(part, block) for all blocks of all parts.
template <typename Body>
void for_blocks(std::int64_t parts, std::int64_t elements, const Body& body) {
  const std::int64_t blocks = elements / kCodeBlock;
  constexpr std::int64_t kGrain = 256;
  at::parallel_for(0, parts * blocks, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(i / blocks, i % blocks);
  });
}

void read_block(const void* x, DType dtype, std::int64_t first, Block& out) {
  const auto read = [&]<typename T>(const T* from) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(from[i]);
  };
  switch (dtype) {
    case DType::f32:
      return read(static_cast<const float*>(x) + first);
    case DType::bf16:
      return read(static_cast<const c10::BFloat16*>(x) + first);
    case DType::f16:
      return read(static_cast<const c10::Half*>(x) + first);
  }
}

void write_block(void* out, DType dtype, std::int64_t first, const Block& values) {
  const auto write = [&]<typename T>(T* to) {
    for (std::size_t i = 0; i < values.size(); ++i) to[i] = c10::convert<T>(values[i]);
  };
  switch (dtype) {
    case DType::f32:
      return write(static_cast<float*>(out) + first);
    case DType::bf16:
      return write(static_cast<c10::BFloat16*>(out) + first);
    case DType::f16:
      return write(static_cast<c10::Half*>(out) + first);
  }
}

std::uint32_t largest_magnitude(const Block& x) {
  std::uint32_t largest = 0;
  for (const float value : x) largest = std::max(largest, magnitude_bits(value));
  return largest;
}

/// Codes of a block whose values are finite.
void write_int8(const Block& x, float inverse, std::uint8_t* codes) {
  for (std::size_t i = 0; i < x.size(); ++i)
    codes[i] = static_cast<std::uint8_t>(nearest_int8(x[i], inverse));
}

void write_fp8(const Block& x, float inverse, std::uint8_t* codes) {
  for (std::size_t i = 0; i < x.size(); ++i)
    codes[i] = c10::detail::fp8e4m3fn_from_fp32_value(x[i] * inverse);
}

void write_pairs(const std::array<std::uint32_t, kCodeBlock>& code, std::uint8_t* codes) {
  for (std::size_t i = 0; i < code.size(); i += 2)
    codes[i / 2] = static_cast<std::uint8_t>(code[i] | code[i + 1] << 4);
}

void write_int4(const Block& x, float inverse, std::uint8_t* codes) {
  std::array<std::uint32_t, kCodeBlock> code;
  for (std::size_t i = 0; i < x.size(); ++i) code[i] = nearest_int4(x[i], inverse);
  write_pairs(code, codes);
}

void write_random_int4(const Block& x, float inverse, const QuantizeBlocks& a, std::int64_t first,
                       std::uint8_t* codes) {
  std::array<std::uint32_t, kCodeBlock> code;
  for (std::size_t lane = 0; lane < CodeBits::kLanes; ++lane) {
    const CodeBits bits = CodeBits::at(a.key, a.counter, first, static_cast<int>(lane));
    for (std::size_t k = 0; k < 8; ++k) {
      const std::size_t i = k / 4 * 64 + 4 * lane + k % 4;
      code[i] = random_int4(x[i], inverse, bits.of(static_cast<int>(k)));
    }
  }
  write_pairs(code, codes);
}

template <CodeFormat kFormat>
void quantize_block(const QuantizeBlocks& a, std::int64_t part, std::int64_t block) {
  const std::int64_t start = part * a.x_stride + block * kCodeBlock;
  Block x;
  read_block(a.x, a.dtype, start, x);
  std::uint8_t* coded = a.coded + part * a.coded_stride;
  std::uint8_t* codes = coded + code_bytes(kFormat, block * kCodeBlock);
  auto* scales = reinterpret_cast<std::uint16_t*>(coded + code_bytes(kFormat, a.elements));
  const BlockScale scale = scale_of<kFormat>(largest_magnitude(x));
  scales[block] = scale.bits;
  if (!scale.finite) {
    std::fill_n(codes, code_bytes(kFormat, kCodeBlock), std::uint8_t{0});
  } else if constexpr (kFormat == CodeFormat::int8) {
    write_int8(x, scale.inverse, codes);
  } else if constexpr (kFormat == CodeFormat::fp8) {
    write_fp8(x, scale.inverse, codes);
  } else if (a.stochastic) {
    write_random_int4(x, scale.inverse, a, a.first_element + start, codes);
  } else {
    write_int4(x, scale.inverse, codes);
  }
}

const std::array<float, 256>& fp8_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (std::size_t code = 0; code < table.size(); ++code)
      table[code] = c10::detail::fp8e4m3fn_to_fp32_value(static_cast<std::uint8_t>(code));
    return table;
  }();
  return values;
}

/// The values of a block of a part of `elements`.
void decode_block(const std::uint8_t* coded, CodeFormat format, std::int64_t elements,
                  std::int64_t block, Block& out) {
  const std::uint8_t* codes = coded + code_bytes(format, block * kCodeBlock);
  const float scale = scale_value(
      reinterpret_cast<const std::uint16_t*>(coded + code_bytes(format, elements))[block]);
  switch (format) {
    case CodeFormat::int8:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = int8_value(codes[i]) * scale;
      return;
    case CodeFormat::fp8:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = fp8_values()[codes[i]] * scale;
      return;
    case CodeFormat::int4:
      for (std::size_t i = 0; i < out.size(); i += 2) {
        out[i] = int4_value(codes[i / 2] & 0xfu) * scale;
        out[i + 1] = int4_value(codes[i / 2] >> 4U) * scale;
      }
      return;
  }
}

}  // namespace

void quantize_blocks(const QuantizeBlocks& a) {
  for_blocks(a.parts, a.elements, [&](std::int64_t part, std::int64_t block) {
    switch (a.format) {
      case CodeFormat::int8:
        return quantize_block<CodeFormat::int8>(a, part, block);
      case CodeFormat::fp8:
        return quantize_block<CodeFormat::fp8>(a, part, block);
      case CodeFormat::int4:
        return quantize_block<CodeFormat::int4>(a, part, block);
    }
  });
}

void dequantize_blocks(const DequantizeBlocks& a) {
  for_blocks(a.parts, a.elements, [&](std::int64_t part, std::int64_t block) {
    Block values;
    decode_block(a.coded + part * a.coded_stride, a.format, a.elements, block, values);
    write_block(a.out, a.dtype, part * a.out_stride + block * kCodeBlock, values);
  });
}

void sum_blocks(const SumBlocks& a) {
  for_blocks(1, a.elements, [&](std::int64_t /*part*/, std::int64_t block) {
    Block sum{};
    for (std::int64_t part = 0; part < a.parts; ++part) {
      Block values;
      decode_block(a.coded + part * a.coded_stride, a.format, a.elements, block, values);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    }
    float* out = a.sum + block * kCodeBlock;
    for (std::size_t i = 0; i < sum.size(); ++i) out[i] = a.add ? out[i] + sum[i] : sum[i];
  });
}

}  // namespace dstrain::kernels::cpu
