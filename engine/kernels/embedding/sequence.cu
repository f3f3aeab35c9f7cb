#include "engine/kernels/device.cuh"
#include "engine/kernels/embedding/kernels.h"

/// Kernels that move rows: images to patches, patches to sequences.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// One thread writes V neighbours of a patch's line, so writes are dense and reads come in lines of
/// the patch.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads) patchify_kernel(const Patchify a, std::int64_t count) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const std::int64_t line = a.patch / V, across = a.width / a.patch, down = a.height / a.patch;
  std::int64_t rest = index;
  const std::int64_t x = rest % line;
  rest /= line;
  const std::int64_t y = rest % a.patch;
  rest /= a.patch;
  const std::int64_t channel = rest % a.channels;
  rest /= a.channels;
  const std::int64_t column = rest % across;
  rest /= across;
  const std::int64_t row = rest % down, image = rest / down;
  const std::int64_t source =
      ((image * a.channels + channel) * a.height + row * a.patch + y) * a.width / V +
      column * line + x;
  store(a.patches, index, load<T, V>(a.images, source));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    embed_sequence_kernel(const EmbedSequence a, std::int64_t count) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const std::int64_t packs = a.dim / kPack, pack = index % packs;
  const std::int64_t token = index / packs % a.tokens, image = index / packs / a.tokens;
  float value[kPack], position[kPack];
  const Pack<T> source =
      token < a.first
          ? load<T, kPack>(a.first_tokens, token * packs + pack)
          : load<T, kPack>(a.patches,
                           (image * (a.tokens - a.first) + token - a.first) * packs + pack);
  source.unpack(value);
  load<T, kPack>(a.positions, token * packs + pack).unpack(position);
#pragma unroll
  for (int i = 0; i < kPack; ++i) value[i] += position[i];
  store(a.out, index, Pack<T>::of(value));
}

/// A lane owns eight columns of one token; the warps of a block share the batch, and their sums are
/// added in their order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    embed_sequence_backward_kernel(const EmbedSequenceBackward a) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kWarp * kPack == kThreads);  // a thread adds one column
  __shared__ float totals[kWarps][kThreads];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t packs = a.dim / kPack;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  float total[kPack] = {};
  if (index < a.tokens * packs) {
    const std::int64_t pack = index % packs, token = index / packs;
#pragma unroll 4
    for (std::int64_t image = warp; image < a.batch; image += kWarps) {
      const Pack<T> grad = load<T, kPack>(a.grad_out, image * a.tokens * packs + index);
      float value[kPack];
      grad.unpack(value);
#pragma unroll
      for (int i = 0; i < kPack; ++i) total[i] += value[i];
      if (token >= a.first)
        store(a.grad_patches, (image * (a.tokens - a.first) + token - a.first) * packs + pack,
              grad);
    }
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) totals[warp][lane * kPack + i] = total[i];
  __syncthreads();
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= a.tokens * a.dim) return;
  float sum = 0;
#pragma unroll
  for (const auto& of_warp : totals) sum += of_warp[threadIdx.x];
  a.grad_positions[column] += sum;
  if (column < a.first * a.dim) a.grad_first_tokens[column] += sum;
}

}  // namespace

void patchify(const Patchify& args, cudaStream_t stream) {
  const std::int64_t elements = args.batch * args.channels * args.height * args.width;
  if (elements == 0) return;
  const auto launch = [&](auto zero, auto width) {
    constexpr int kWidth = decltype(width)::value;
    const std::int64_t count = elements / kWidth;
    patchify_kernel<decltype(zero), kWidth>
        <<<blocks_for(count, kThreads), kThreads, 0, stream>>>(args, count);
  };
  with_type(args.dtype, [&](auto zero) {
    if (args.patch % 8 == 0) return launch(zero, std::integral_constant<int, 8>{});
    if (args.patch % 2 == 0) return launch(zero, std::integral_constant<int, 2>{});
    launch(zero, std::integral_constant<int, 1>{});
  });
  check_launch("patchify");
}

void embed_sequence(const EmbedSequence& args, cudaStream_t stream) {
  require_taken(kEmbeddingDims, args.dim, "embed_sequence, dim");
  const std::int64_t count = args.batch * args.tokens * args.dim / kPack;
  if (count == 0) return;
  with_type(args.dtype, [&](auto zero) {
    embed_sequence_kernel<decltype(zero)>
        <<<blocks_for(count, kThreads), kThreads, 0, stream>>>(args, count);
  });
  check_launch("embed_sequence");
}

void embed_sequence_backward(const EmbedSequenceBackward& args, cudaStream_t stream) {
  require_taken(kEmbeddingDims, args.dim, "embed_sequence_backward, dim");
  const std::int64_t count = args.tokens * args.dim / kPack;
  if (count == 0) return;
  with_type(args.dtype, [&](auto zero) {
    embed_sequence_backward_kernel<decltype(zero)>
        <<<blocks_for(count, kWarp), kThreads, 0, stream>>>(args);
  });
  check_launch("embed_sequence_backward");
}

}  // namespace dstrain::kernels::cuda
