#include <cuda_fp8.h>

#include "engine/kernels/device.cuh"
#include "engine/kernels/wire/wire_math.h"

/// Coded blocks on the GPU. Neighbouring lanes read and write neighbouring words of the wide side
/// (fp32 or 16 bits), since that is where most bytes are; each thread has several blocks under way.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kQuad = 4;                    // elements that a lane reads in a row
constexpr int kLanes = CodeBits::kLanes;    // of a block, two quads each
constexpr int kGroups = kThreads / kLanes;  // blocks that are read at once
constexpr int kQuads = kCodeBlock / kQuad;  // of a block
constexpr unsigned kWholeWarp = 0xffffffffu;

/// The largest of the lanes of one block.
__device__ std::uint32_t block_largest(std::uint32_t x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    x = max(x, __shfl_xor_sync(kWholeWarp, x, offset));
  return x;
}

template <CodeFormat kFormat, bool kStochastic>
__device__ std::uint32_t codes_of(const float (&x)[kQuad], float inverse, const CodeBits& random,
                                  int first) {
  if constexpr (kFormat == CodeFormat::fp8) {
    const auto pair = [&](int i) -> std::uint32_t {
      const float2 scaled = make_float2(__fmul_rn(x[i], inverse), __fmul_rn(x[i + 1], inverse));
      return __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
    };
    return pair(0) | pair(2) << 16;
  } else {
    std::uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      if constexpr (kFormat == CodeFormat::int8) {
        codes |= nearest_int8(x[i], inverse) << (8 * i);
      } else if constexpr (kStochastic) {
        codes |= random_int4(x[i], inverse, random.of(first + i)) << (4 * i);
      } else {
        codes |= nearest_int4(x[i], inverse) << (4 * i);
      }
    }
    return codes;
  }
}

/// Codes of quad `index` of the part: a word, or half of one.
template <CodeFormat kFormat>
__device__ void store_codes(std::uint8_t* coded, std::int64_t index, std::uint32_t codes) {
  if constexpr (kFormat == CodeFormat::int4) {
    reinterpret_cast<std::uint16_t*>(coded)[index] = static_cast<std::uint16_t>(codes);
  } else {
    reinterpret_cast<std::uint32_t*>(coded)[index] = codes;
  }
}

template <typename T, CodeFormat kFormat, bool kStochastic>
__global__ void __launch_bounds__(kThreads) quantize_blocks_kernel(const QuantizeBlocks a) {
  constexpr int kUnroll = 8 / sizeof(T);  // 64 bytes a thread
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t blocks = a.elements / kCodeBlock;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * (kUnroll * kGroups) +
                             static_cast<int>(threadIdx.x) / kLanes;
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.y) * a.x_stride;
  const T* x = static_cast<const T*>(a.x) + start;
  std::uint8_t* coded = a.coded + static_cast<std::int64_t>(blockIdx.y) * a.coded_stride;
  auto* scales = reinterpret_cast<std::uint16_t*>(coded + code_bytes(kFormat, a.elements));

  Pack<T, kQuad> packs[kUnroll][2];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    // A lane without a block reads the last one again, since whole warps exchange what is largest.
    const std::int64_t block = min(first + u * kGroups, blocks - 1);
    packs[u][0] = load<T, kQuad>(x, block * kQuads + lane);
    packs[u][1] = load<T, kQuad>(x, block * kQuads + kLanes + lane);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t block = first + u * kGroups;
    float low[kQuad], high[kQuad];
    packs[u][0].unpack(low);
    packs[u][1].unpack(high);
    std::uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kQuad; ++i)
      largest = max(largest, max(magnitude_bits(low[i]), magnitude_bits(high[i])));
    const BlockScale scale = scale_of<kFormat>(block_largest(largest));
    if (block >= blocks) continue;
    CodeBits random{};
    if constexpr (kStochastic) {
      random = CodeBits::at(a.key, a.counter, a.first_element + start + block * kCodeBlock, lane);
    }
    const std::uint32_t keep = scale.finite ? 0xffffffffu : 0;
    store_codes<kFormat>(coded, block * kQuads + lane,
                         keep & codes_of<kFormat, kStochastic>(low, scale.inverse, random, 0));
    store_codes<kFormat>(coded, block * kQuads + kLanes + lane,
                         keep & codes_of<kFormat, kStochastic>(high, scale.inverse, random, kQuad));
    if (lane == 0) scales[block] = scale.bits;
  }
}

/// N codes as they lie in memory.
template <CodeFormat kFormat, int N>
struct Codes {
  static constexpr int kBytes = kFormat == CodeFormat::int4 ? N / 2 : N;
  static constexpr int kWords = kBytes < 4 ? 1 : kBytes / 4;
  std::uint32_t word[kWords];

  __device__ static Codes at(const std::uint8_t* coded, std::int64_t index) {
    Codes codes;
    if constexpr (kBytes == 2) {
      codes.word[0] = reinterpret_cast<const std::uint16_t*>(coded)[index];
    } else if constexpr (kBytes == 4) {
      codes.word[0] = reinterpret_cast<const std::uint32_t*>(coded)[index];
    } else {
      static_assert(kBytes == 8);
      const uint2 both = reinterpret_cast<const uint2*>(coded)[index];
      codes.word[0] = both.x;
      codes.word[1] = both.y;
    }
    return codes;
  }

  /// Exact: a whole number of few bits, put below 2^23, is that number in fp32.
  __device__ void values(float (&out)[N]) const {
    if constexpr (kFormat == CodeFormat::fp8) {
#pragma unroll
      for (int i = 0; i < N; i += 2) {
        const auto pair = static_cast<__nv_fp8x2_storage_t>(word[i / 4] >> (8 * (i % 4)));
        const float2 two = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
        out[i] = two.x;
        out[i + 1] = two.y;
      }
    } else {
      constexpr int kBits = kFormat == CodeFormat::int4 ? 4 : 8, kPerWord = 32 / kBits;
      constexpr std::uint32_t kMiddle = 1u << (kBits - 1);
      constexpr float kOffset = 8388608.0f + kMiddle;  // 2^23 and the middle
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const std::uint32_t code =
            ((word[i / kPerWord] >> (kBits * (i % kPerWord))) & (2 * kMiddle - 1)) ^ kMiddle;
        out[i] = __uint_as_float(0x4b000000u | code) - kOffset;
      }
    }
  }
};

constexpr int kUnrollPacks = 4;

template <typename T, CodeFormat kFormat>
__global__ void __launch_bounds__(kThreads) dequantize_blocks_kernel(const DequantizeBlocks a) {
  constexpr int kPackSize = 16 / sizeof(T);
  constexpr int kPacks = kCodeBlock / kPackSize;  // of a block
  using PackCodes = Codes<kFormat, kPackSize>;
  const std::int64_t packs = a.elements / kPackSize;
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * (kUnrollPacks * kThreads) + threadIdx.x;
  const std::uint8_t* coded = a.coded + static_cast<std::int64_t>(blockIdx.y) * a.coded_stride;
  const auto* scales =
      reinterpret_cast<const std::uint16_t*>(coded + code_bytes(kFormat, a.elements));
  T* out = static_cast<T*>(a.out) + static_cast<std::int64_t>(blockIdx.y) * a.out_stride;

  PackCodes codes[kUnrollPacks];
  float scale[kUnrollPacks];
#pragma unroll
  for (int u = 0; u < kUnrollPacks; ++u) {
    const std::int64_t pack = min(first + u * kThreads, packs - 1);
    codes[u] = PackCodes::at(coded, pack);
    scale[u] = scale_value(scales[pack / kPacks]);
  }
#pragma unroll
  for (int u = 0; u < kUnrollPacks; ++u) {
    const std::int64_t pack = first + u * kThreads;
    if (pack >= packs) return;
    float value[kPackSize];
    codes[u].values(value);
#pragma unroll
    for (float& v : value) v = __fmul_rn(v, scale[u]);
    store(out, pack, Pack<T, kPackSize>::of(value));
  }
}

/// A thread goes through the parts in order; products of code and scale are exact, so the sums are
/// those of the CPU.
template <CodeFormat kFormat, bool kAdd>
__global__ void __launch_bounds__(kThreads) sum_blocks_kernel(const SumBlocks a) {
  using QuadCodes = Codes<kFormat, kQuad>;
  const std::int64_t quads = a.elements / kQuad;
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * (kUnrollPacks * kThreads) + threadIdx.x;
  float sum[kUnrollPacks][kQuad] = {};
  Pack<float, kQuad> held[kUnrollPacks];
  if constexpr (kAdd) {
#pragma unroll
    for (int u = 0; u < kUnrollPacks; ++u)
      held[u] = load<float, kQuad>(a.sum, min(first + u * kThreads, quads - 1));
  }
#pragma unroll 2
  for (std::int64_t part = 0; part < a.parts; ++part) {
    const std::uint8_t* coded = a.coded + part * a.coded_stride;
    const auto* scales =
        reinterpret_cast<const std::uint16_t*>(coded + code_bytes(kFormat, a.elements));
    QuadCodes codes[kUnrollPacks];
    float scale[kUnrollPacks];
#pragma unroll
    for (int u = 0; u < kUnrollPacks; ++u) {
      const std::int64_t quad = min(first + u * kThreads, quads - 1);
      codes[u] = QuadCodes::at(coded, quad);
      scale[u] = scale_value(scales[quad / kQuads]);
    }
#pragma unroll
    for (int u = 0; u < kUnrollPacks; ++u) {
      float value[kQuad];
      codes[u].values(value);
#pragma unroll
      for (int i = 0; i < kQuad; ++i)
        sum[u][i] = __fadd_rn(sum[u][i], __fmul_rn(value[i], scale[u]));
    }
  }
#pragma unroll
  for (int u = 0; u < kUnrollPacks; ++u) {
    const std::int64_t quad = first + u * kThreads;
    if (quad >= quads) return;
    if constexpr (kAdd) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) sum[u][i] = __fadd_rn(held[u].value[i], sum[u][i]);
    }
    store(a.sum, quad, Pack<float, kQuad>::of(sum[u]));
  }
}

template <CodeFormat kFormat>
struct Format {
  static constexpr CodeFormat kValue = kFormat;
};

/// Calls `body` with a Format.
template <typename Body>
void with_format(CodeFormat format, const Body& body) {
  switch (format) {
    case CodeFormat::int8:
      return body(Format<CodeFormat::int8>{});
    case CodeFormat::fp8:
      return body(Format<CodeFormat::fp8>{});
    case CodeFormat::int4:
      return body(Format<CodeFormat::int4>{});
  }
}

template <typename T, CodeFormat kFormat, bool kStochastic>
void launch_quantize(const QuantizeBlocks& args, cudaStream_t stream) {
  constexpr int kUnroll = 8 / sizeof(T);
  const dim3 grid(blocks_for(args.elements / kCodeBlock, kUnroll * kGroups),
                  static_cast<unsigned>(args.parts));
  quantize_blocks_kernel<T, kFormat, kStochastic><<<grid, kThreads, 0, stream>>>(args);
}

}  // namespace

void quantize_blocks(const QuantizeBlocks& args, cudaStream_t stream) {
  if (args.parts == 0 || args.elements == 0) return;
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_format(args.format, [&](auto format) {
      constexpr CodeFormat kFormat = decltype(format)::kValue;
      if constexpr (kFormat == CodeFormat::int4) {
        if (args.stochastic) return launch_quantize<T, kFormat, true>(args, stream);
      }
      launch_quantize<T, kFormat, false>(args, stream);
    });
  });
  check_launch("quantize_blocks");
}

void dequantize_blocks(const DequantizeBlocks& args, cudaStream_t stream) {
  if (args.parts == 0 || args.elements == 0) return;
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr std::int64_t kPackSize = 16 / sizeof(T);
    const dim3 grid(blocks_for(args.elements / kPackSize, kUnrollPacks * kThreads),
                    static_cast<unsigned>(args.parts));
    with_format(args.format, [&](auto format) {
      dequantize_blocks_kernel<T, decltype(format)::kValue><<<grid, kThreads, 0, stream>>>(args);
    });
  });
  check_launch("dequantize_blocks");
}

void sum_blocks(const SumBlocks& args, cudaStream_t stream) {
  if (args.elements == 0) return;
  const unsigned blocks = blocks_for(args.elements / kQuad, kUnrollPacks * kThreads);
  with_format(args.format, [&](auto format) {
    constexpr CodeFormat kFormat = decltype(format)::kValue;
    if (args.add) {
      sum_blocks_kernel<kFormat, true><<<blocks, kThreads, 0, stream>>>(args);
    } else {
      sum_blocks_kernel<kFormat, false><<<blocks, kThreads, 0, stream>>>(args);
    }
  });
  check_launch("sum_blocks");
}

}  // namespace dstrain::kernels::cuda
