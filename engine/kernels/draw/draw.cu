#include "engine/kernels/device.cuh"
#include "engine/kernels/draw/draw_math.h"
#include "engine/kernels/draw/kernels.h"

namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kWords = 4;  ///< of a counter of Philox

template <double (*kDraw)(std::uint32_t)>
__global__ void __launch_bounds__(kThreads) draw_kernel(const Draw a) {
  // A thread has the elements of one counter, as far as they lie in its row of the box.
  const std::int64_t per_row = a.width / kWords + 2;  // a row may begin and end within a counter
  const std::int64_t rows = (a.count + a.width - 1) / a.width;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       t < rows * per_row; t += step) {
    const std::int64_t row = t / per_row;
    const std::int64_t begin = a.first + row * a.row;  // places of this row in the whole tensor
    const std::int64_t own = min(a.width, a.count - row * a.width);
    const std::int64_t counter = begin / kWords + t % per_row;
    if (counter * kWords >= begin + own) continue;
    const Philox random = Philox::at(a.key, a.stream, static_cast<std::uint64_t>(counter));
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const std::int64_t column = counter * kWords + i - begin;
      if (column >= 0 && column < own)
        a.out[row * a.width + column] = static_cast<float>(a.std * kDraw(random.word[i]));
    }
  }
}

}  // namespace

void draw(const Draw& args, cudaStream_t stream) {
  if (args.count == 0) return;
  constexpr std::int64_t kMaxBlocks = 132 * 64;
  const std::int64_t rows = (args.count + args.width - 1) / args.width;
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(blocks_for(rows * (args.width / kWords + 2), kThreads), kMaxBlocks));
  switch (args.distribution) {
    case Distribution::truncated_normal:
      draw_kernel<draw_truncated_normal><<<blocks, kThreads, 0, stream>>>(args);
      break;
    case Distribution::normal:
      draw_kernel<draw_normal><<<blocks, kThreads, 0, stream>>>(args);
      break;
    case Distribution::uniform:
      draw_kernel<draw_uniform><<<blocks, kThreads, 0, stream>>>(args);
      break;
  }
  check_launch("draw");
}

}  // namespace dstrain::kernels::cuda
