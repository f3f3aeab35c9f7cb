#include "engine/kernels/device.cuh"
#include "engine/kernels/nf4/kernels.h"
#include "engine/kernels/nf4/nf4_math.h"

/// 4-bit matrices on the GPU: a thread writes eight neighbouring elements at a time, and eight
/// threads share a maximum.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWords = 4;                       // of eight codes, that a thread decodes
constexpr int kBlockWords = kNf4Block / kPack;  // of a block of the format
__device__ const float kValues[16] = DSTRAIN_NF4_VALUES;

template <typename T, bool kDouble>
__global__ void __launch_bounds__(kThreads) decode_nf4_kernel(const DecodeNf4 a) {
  // A bank each: lanes that read other codes do not wait for each other.
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = kValues[threadIdx.x];
  __syncthreads();
  const Nf4Piece& piece = a.piece;
  const auto* codes = reinterpret_cast<const std::uint32_t*>(a.stored + piece.codes);
  const std::int64_t words = piece.blocks * kBlockWords;
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * (kWords * kThreads) + threadIdx.x;
  std::uint32_t word[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::int64_t at = first + i * kThreads;
    word[i] = at < words ? codes[at] : 0;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::int64_t at = first + i * kThreads;
    if (at >= words) return;
    const std::int64_t block = at / kBlockWords;
    float maximum;
    if constexpr (kDouble) {
      const auto* table = reinterpret_cast<const float*>(a.stored + piece.tables);
      const std::int64_t whole =
          piece.row_blocks == piece.blocks ? piece.first_block + block : piece.whole_block(block);
      const float value = table[kNf4Codes + a.stored[piece.maxima + block]];
      maximum = __fadd_rn(
          __fmul_rn(value, table[kNf4TableMaxima + whole / kNf4Maxima - piece.first_maxima]),
          table[0]);
    } else {
      maximum = reinterpret_cast<const float*>(a.stored + piece.maxima)[block];
    }
    float out[kPack];
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      // Bytes in their order, in each the upper half first.
      const int shift = j / 2 * 8 + (j % 2 == 0 ? 4 : 0);
      out[j] = __fmul_rn(values[word[i] >> shift & 15], maximum);
    }
    reinterpret_cast<Pack<T>*>(a.out)[at] = Pack<T>::of(out);
  }
}

}  // namespace

void decode_nf4(const DecodeNf4& args, cudaStream_t stream) {
  if (args.piece.blocks == 0) return;
  const unsigned grid = blocks_for(args.piece.blocks * kBlockWords, kWords * kThreads);
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args.double_coded) {
      decode_nf4_kernel<T, true><<<grid, kThreads, 0, stream>>>(args);
    } else {
      decode_nf4_kernel<T, false><<<grid, kThreads, 0, stream>>>(args);
    }
  });
  check_launch("decode_nf4");
}

}  // namespace dstrain::kernels::cuda
