#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <bit>
#include <cstdint>
#include <cstring>

#include "engine/kernels/gradient_format.h"
#include "engine/kernels/optimizer/control.h"
#include "engine/kernels/optimizer/fixed_order.h"
#include "engine/kernels/optimizer/optimizer_cpu.h"
#include "engine/kernels/optimizer/split_weight.h"
#include "engine/kernels/optimizer/stochastic_rounding.h"

/// The optimizer's loops as each file optimizer_<unit>.cpp compiles them for a vector unit of its
/// own: written so that the compiler vectorises them, and with the same bits whatever its width.
/// All that is called here is inlined or a template over kUnit, since the linker keeps one copy of
/// a function, and might keep the one that not every CPU can run.
namespace dstrain::kernels::cpu {

inline constexpr std::int64_t kBlock = 128;  ///< elements whose intermediate values stay in cache

/// Nearest bf16, ties to even; a nan as the GPU gives it.
DSTRAIN_HOST_DEVICE std::uint16_t nearest_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return static_cast<std::uint16_t>(x == x ? rounded >> 16 : 0x7fffu);
}

/// Nearest fp16, ties to even; a nan as the GPU gives it.
DSTRAIN_HOST_DEVICE std::uint16_t nearest_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return 0x7fff;
  std::uint32_t code = 0x7c00;  // from 65520 on: infinity
  if (size < 0x38800000u) {     // below 2^-14: the sum rounds to a multiple of 2^-24
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
  } else if (size < 0x477ff000u) {
    code = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | code);
}

template <VectorUnit kUnit>
void round_f16(const float* __restrict from, std::uint16_t* __restrict to, std::int64_t count) {
  std::int64_t k = 0;
#if defined(__F16C__)
  for (; k + 8 <= count; k += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + k), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k), half);
  }
#endif
  for (; k < count; ++k) to[k] = nearest_f16(from[k]);
}

/// Writes `count` elements to the copy from its element i on.
template <VectorUnit kUnit>
void write_copy(const OptimizerUpdate& args, std::int64_t i, const float* __restrict from,
                std::int64_t count) {
  switch (args.compute_type) {
    case DType::f32: {
      float* __restrict to = static_cast<float*>(args.compute) + i;
      for (std::int64_t k = 0; k < count; ++k) to[k] = from[k];
      return;
    }
    case DType::bf16: {
      std::uint16_t* __restrict to = static_cast<std::uint16_t*>(args.compute) + i;
      for (std::int64_t k = 0; k < count; ++k) to[k] = nearest_bf16(from[k]);
      return;
    }
    case DType::f16:
      return round_f16<kUnit>(from, static_cast<std::uint16_t*>(args.compute) + i, count);
  }
}

/// `count` elements of the gradient from its element i on, in `room` where they are not fp32.
template <VectorUnit kUnit>
const float* gradient_at(const OptimizerUpdate& args, std::int64_t i, std::int64_t count,
                         float (&room)[kBlock]) {
  if (args.gradient_type == DType::f32) return static_cast<const float*>(args.gradient) + i;
  with_gradient(args.gradient_type, [&, from = args.gradient]<DType kType>(GradientFormat<kType>) {
    for (std::int64_t k = 0; k < count; ++k) room[k] = gradient_value<kType>(from, i + k);
  });
  return room;
}

/// `count` elements of a rule, at most kBlock, all in fp32.
template <VectorUnit kUnit, class Rule, bool kRounded>
void update_block(const typename Rule::Element& element, const float* __restrict gradient,
                  float* __restrict parameters, float* __restrict first, float* __restrict second,
                  float* __restrict copy, std::int64_t count) {
  constexpr int kMoments = Rule::kMoments;
  const typename Rule::Element own = element;
  for (std::int64_t k = 0; k < count; ++k) {
    float parameter = parameters[k], moments[OptimizerUpdate::kMaxMoments];
    if constexpr (kMoments > 0) moments[0] = first[k];
    if constexpr (kMoments > 1) moments[1] = second[k];
    const float result = own.template update<kRounded>(gradient[k], parameter, moments);
    if constexpr (Rule::kDirection) copy[k] = result;
    parameters[k] = parameter;
    if constexpr (kMoments > 0) first[k] = moments[0];
    if constexpr (kMoments > 1) second[k] = moments[1];
  }
}

template <VectorUnit kUnit, class Rule>
void update_exact(const OptimizerUpdate& args, const typename Rule::Element& element,
                  std::int64_t begin, std::int64_t end) {
  const auto at = [](void* base, std::int64_t i) {
    return base == nullptr ? nullptr : static_cast<float*>(base) + i;
  };
  for (std::int64_t i = begin; i < end; i += kBlock) {
    const std::int64_t count = end - i < kBlock ? end - i : kBlock;
    float copy[kBlock], room[kBlock];
    const float* const gradient = gradient_at<kUnit>(args, i, count, room);
    float* const parameters = at(args.parameters, i);
    update_block<kUnit, Rule, false>(element, gradient, parameters, at(args.moments[0], i),
                                     at(args.moments[1], i), copy, count);
    if (args.compute != nullptr)
      write_copy<kUnit>(args, i, Rule::kDirection ? copy : parameters, count);
  }
}

/// The same with weights in halves.
template <VectorUnit kUnit, class Rule>
void update_split(const OptimizerUpdate& args, const typename Rule::Element& element,
                  std::int64_t begin, std::int64_t end) {
  const auto moment = [&args](int m, std::int64_t i) {
    return m < Rule::kMoments ? static_cast<float*>(args.moments[m]) + i : nullptr;
  };
  for (std::int64_t i = begin; i < end; i += kBlock) {
    const std::int64_t count = end - i < kBlock ? end - i : kBlock;
    float weights[kBlock], copy[kBlock], room[kBlock];
    const float* const gradient = gradient_at<kUnit>(args, i, count, room);
    std::uint16_t* __restrict upper = static_cast<std::uint16_t*>(args.compute) + i;
    std::uint16_t* __restrict lower = static_cast<std::uint16_t*>(args.parameters) + i;
    for (std::int64_t k = 0; k < count; ++k) weights[k] = SplitWeight{upper[k], lower[k]}.join();
    update_block<kUnit, Rule, false>(element, gradient, weights, moment(0, i), moment(1, i), copy,
                                     count);
    for (std::int64_t k = 0; k < count; ++k) {
      const SplitWeight weight = SplitWeight::of(weights[k]);
      upper[k] = weight.upper;
      lower[k] = weight.lower;
    }
  }
}

/// 64-bit lanes of a whole vector, and the products of their lower halves: compilers do not find
/// the one instruction for it.
#if defined(__AVX512F__)
using Lanes [[gnu::vector_size(64)]] = std::uint64_t;
DSTRAIN_HOST_DEVICE Lanes products(Lanes a, Lanes b) {
  return reinterpret_cast<Lanes>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
#elif defined(__AVX2__)
using Lanes [[gnu::vector_size(32)]] = std::uint64_t;
DSTRAIN_HOST_DEVICE Lanes products(Lanes a, Lanes b) {
  return reinterpret_cast<Lanes>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
#elif defined(__aarch64__)
using Lanes [[gnu::vector_size(16)]] = std::uint64_t;
DSTRAIN_HOST_DEVICE Lanes products(Lanes a, Lanes b) {
  return reinterpret_cast<Lanes>(vmull_u32(vmovn_u64(reinterpret_cast<uint64x2_t>(a)),
                                           vmovn_u64(reinterpret_cast<uint64x2_t>(b))));
}
#else
using Lanes [[gnu::vector_size(16)]] = std::uint64_t;
DSTRAIN_HOST_DEVICE Lanes products(Lanes a, Lanes b) {
  return reinterpret_cast<Lanes>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
}
#endif

/// The random bits of kBlock elements of a state, from group `first` on: RoundingBits with Philox's
/// words in the lower halves of lanes, a lane for each group.
template <VectorUnit kUnit>
void random_bits(std::uint64_t key, std::uint64_t step, std::int64_t first, RoundedState state,
                 std::uint16_t (&out)[kBlock]) {
  constexpr int kGroups = kBlock / RoundingBits::kTogether;
  constexpr int kLanes = sizeof(Lanes) / sizeof(std::uint64_t);
  std::uint64_t words[kGroups][2];
  for (int g = 0; g < kGroups; g += kLanes) {
    Lanes c0{};
    for (int lane = 0; lane < kLanes; ++lane)
      c0[lane] = RoundingBits::counter(first + g + lane, state);
    Lanes c1 = c0 >> 32, c2 = Lanes{} + step, c3 = c2 >> 32;
    Lanes k0 = Lanes{} + key, k1 = k0 >> 32;
    for (int round = 0; round < Philox::kRounds; ++round) {
      const Lanes p0 = products(c0, Lanes{} + Philox::kFactor0),
                  p1 = products(c2, Lanes{} + Philox::kFactor1);
      c0 = (p1 >> 32) ^ c1 ^ k0;
      c2 = (p0 >> 32) ^ c3 ^ k1;
      c1 = p1;
      c3 = p0;
      k0 += Philox::kStep0;
      k1 += Philox::kStep1;
    }
    const Lanes low = (c0 & 0xffffffffu) | c1 << 32, high = (c2 & 0xffffffffu) | c3 << 32;
    for (int lane = 0; lane < kLanes; ++lane) {
      words[g + lane][0] = low[lane];
      words[g + lane][1] = high[lane];
    }
  }
  // The k-th 16 bits of a group's words, which is RoundingBits::of.
  static_assert(std::endian::native == std::endian::little && sizeof(words) == sizeof(out));
  std::memcpy(out, words, sizeof(out));
}

template <VectorUnit kUnit, class Rule>
void update_rounded(const OptimizerUpdate& args, const typename Rule::Element& element,
                    std::int64_t begin, std::int64_t end) {
  constexpr int kStates = 1 + Rule::kMoments;
  const std::uint64_t key = random_key(args.seed, RandomStream::rounding);
  const auto step = static_cast<std::uint64_t>(args.control[optimizer::kAppliedSteps]);
  std::uint16_t* const bases[] = {static_cast<std::uint16_t*>(args.parameters),
                                  static_cast<std::uint16_t*>(args.moments[0]),
                                  static_cast<std::uint16_t*>(args.moments[1])};
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t position = args.first_element + i;
    const std::int64_t lead = position % RoundingBits::kTogether;  // no group is divided in two
    const std::int64_t count = end - i < kBlock - lead ? end - i : kBlock - lead;
    float states[3][kBlock], copy[kBlock], room[kBlock];
    const float* const gradient = gradient_at<kUnit>(args, i, count, room);
    std::uint16_t random[kBlock];
    for (int s = 0; s < kStates; ++s) {
      const std::uint16_t* __restrict from = bases[s] + i;
      float* __restrict to = states[s];
      for (std::int64_t k = 0; k < count; ++k) to[k] = bf16_value(from[k]);
    }
    update_block<kUnit, Rule, true>(element, gradient, states[0], states[1], states[2], copy,
                                    count);
    if constexpr (Rule::kDirection) write_copy<kUnit>(args, i, copy, count);
    for (int s = 0; s < kStates; ++s) {
      random_bits<kUnit>(key, step, position / RoundingBits::kTogether,
                         static_cast<RoundedState>(s), random);
      const float* __restrict from = states[s];
      const std::uint16_t* __restrict bits = random + lead;
      std::uint16_t* __restrict to = bases[s] + i;
      for (std::int64_t k = 0; k < count; ++k) to[k] = round_stochastically(from[k], bits[k]);
    }
    i += count;
  }
}

template <VectorUnit kUnit, class Rule>
void run_loop(const OptimizerUpdate& args, const typename Rule::Element& element,
              std::int64_t begin, std::int64_t end) {
  if (args.states == DType::bf16) {
    update_rounded<kUnit, Rule>(args, element, begin, end);
  } else if (args.split) {
    update_split<kUnit, Rule>(args, element, begin, end);
  } else {
    update_exact<kUnit, Rule>(args, element, begin, end);
  }
}

}  // namespace dstrain::kernels::cpu
