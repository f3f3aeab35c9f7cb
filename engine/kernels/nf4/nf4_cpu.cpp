#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/TypeCast.h>

#include "engine/kernels/nf4/kernels.h"
#include "engine/kernels/nf4/nf4_math.h"

/// 4-bit matrices on the CPU.
namespace dstrain::kernels::cpu {
namespace {

float maximum_of(const DecodeNf4& a, std::int64_t block) {
  if (!a.double_coded) return reinterpret_cast<const float*>(a.stored + a.piece.maxima)[block];
  const auto* table = reinterpret_cast<const float*>(a.stored + a.piece.tables);
  const float value = table[kNf4Codes + a.stored[a.piece.maxima + block]];
  const std::int64_t shared = a.piece.whole_block(block) / kNf4Maxima - a.piece.first_maxima;
  return value * table[kNf4TableMaxima + shared] + table[0];
}

template <typename T>
void decode(const DecodeNf4& a) {
  constexpr std::int64_t kGrain = 256;
  at::parallel_for(0, a.piece.blocks, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const float maximum = maximum_of(a, block);
      const std::uint8_t* codes = a.stored + a.piece.codes + block * (kNf4Block / 2);
      T* out = static_cast<T*>(a.out) + block * kNf4Block;
      for (std::int64_t i = 0; i < kNf4Block / 2; ++i) {
        out[2 * i] = c10::convert<T>(kNf4Values[codes[i] >> 4] * maximum);
        out[2 * i + 1] = c10::convert<T>(kNf4Values[codes[i] & 15] * maximum);
      }
    }
  });
}

}  // namespace

void decode_nf4(const DecodeNf4& args) {
  switch (args.dtype) {
    case DType::f32:
      return decode<float>(args);
    case DType::bf16:
      return decode<c10::BFloat16>(args);
    case DType::f16:
      return decode<c10::Half>(args);
  }
}

}  // namespace dstrain::kernels::cpu
