#include <algorithm>

#include "engine/kernels/conv/columns_kernel.h"
#include "engine/kernels/device.cuh"

namespace dstrain::kernels::cuda {
namespace {

constexpr int kColumnThreads = 256;
constexpr std::int64_t kMaxGridSamples = 65535;

/// A thread makes eight neighbours of one row. K: the kernel's size, by which is divided; 0: known
/// when it runs.
template <typename T, int K>
__global__ void __launch_bounds__(kColumnThreads) columns_kernel(const ImageColumns a) {
  const int kernel = K > 0 ? K : a.kernel;
  const auto packs = static_cast<std::uint32_t>(a.columns_width / kPack);
  const std::uint32_t i = blockIdx.x * kColumnThreads + threadIdx.x;
  const auto pixel = static_cast<int>(i / packs), pack = static_cast<int>(i % packs);
  const int pixels = a.out_height * a.out_width;
  if (pixel >= pixels) return;
  const int top = pixel / a.out_width * a.stride - a.before,
            left = pixel % a.out_width * a.stride - a.before;
  for (std::int64_t n = blockIdx.y; n < a.samples; n += gridDim.y) {
    const T* image = static_cast<const T*>(a.x) + n * a.sample_stride;
    Pack<T, kPack> out;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const int element = pack * kPack + j, channel = element / (kernel * kernel),
                tap = element % (kernel * kernel);
      const int y = top + tap / kernel, x = left + tap % kernel;
      const bool inside = channel < a.channels && y >= 0 && y < a.height && x >= 0 && x < a.width;
      out.value[j] =
          inside ? image[y * a.row_stride + x * a.column_stride + channel * a.channel_stride]
                 : from_float<T>(0);
    }
    store(a.columns, (n * pixels + pixel) * packs + pack, out);
  }
}

constexpr int kPixelThreads = 128;
constexpr int kChannels = 3;

/// Images of three channels and small kernels: a thread makes the row of one pixel, whose places in
/// the image are known when this is compiled, a few words at a time; a block writes them side by
/// side.
template <typename T, int K>
__global__ void __launch_bounds__(kPixelThreads) pixel_columns_kernel(const ImageColumns a) {
  constexpr int kWindow = kChannels * K * K, kPacks = (kWindow + kPack - 1) / kPack;
  constexpr int kGroup = 4;  // packs at a time
  using Word = Pack<T, kPack>;
  // A word more in each row, so that threads write to different banks.
  __shared__ Word rows[kPixelThreads][kGroup + 1];
  const int pixels = a.out_height * a.out_width,
            first = static_cast<int>(blockIdx.x) * kPixelThreads;
  const int pixel = first + static_cast<int>(threadIdx.x);
  const int top = pixel / a.out_width * a.stride - a.before,
            left = pixel % a.out_width * a.stride - a.before;
  const int row_step = static_cast<int>(a.row_stride), step = static_cast<int>(a.column_stride),
            plane = static_cast<int>(a.channel_stride);
  for (std::int64_t n = blockIdx.y; n < a.samples; n += gridDim.y) {
    const T* image = static_cast<const T*>(a.x) + n * a.sample_stride;
#pragma unroll
    for (int group = 0; group < kPacks; group += kGroup) {
#pragma unroll
      for (int p = 0; p < kGroup; ++p) {
        if (group + p >= kPacks) continue;
        Word word;
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          constexpr int kTaps = K * K;
          const int element = (group + p) * kPack + j, channel = element / kTaps,
                    tap = element % kTaps, y = top + tap / K, x = left + tap % K;
          const bool inside = element < kWindow && pixel < pixels && y >= 0 && y < a.height &&
                              x >= 0 && x < a.width;
          word.value[j] =
              inside ? image[channel * plane + y * row_step + x * step] : from_float<T>(0);
        }
        rows[threadIdx.x][p] = word;
      }
      __syncthreads();
      const int here = kPacks - group < kGroup ? kPacks - group : kGroup;
      for (int i = static_cast<int>(threadIdx.x); i < kPixelThreads * here; i += kPixelThreads) {
        const int row = i / here, word = i % here;
        if (first + row < pixels)
          store(a.columns, (n * pixels + first + row) * kPacks + group + word, rows[row][word]);
      }
      __syncthreads();
    }
  }
}

/// Whether the kernel above serves: its offsets within an image are of 32 bits.
bool by_pixels(const ImageColumns& a) {
  const std::int64_t last = (kChannels - 1) * a.channel_stride + (a.height - 1) * a.row_stride +
                            (a.width - 1) * a.column_stride;
  return a.channels == kChannels && a.kernel == 3 &&
         a.columns_width - kChannels * a.kernel * a.kernel < kPack &&
         last < (std::int64_t{1} << 31);
}

}  // namespace

void image_columns(const ImageColumns& args, cudaStream_t stream) {
  const std::int64_t work =
      static_cast<std::int64_t>(args.out_height) * args.out_width * (args.columns_width / kPack);
  if (args.samples == 0 || work == 0) return;
  const dim3 grid(blocks_for(work, kColumnThreads),
                  static_cast<unsigned>(std::min(args.samples, kMaxGridSamples)));
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (by_pixels(args)) {
      const dim3 blocks(
          blocks_for(static_cast<std::int64_t>(args.out_height) * args.out_width, kPixelThreads),
          grid.y);
      pixel_columns_kernel<T, 3><<<blocks, kPixelThreads, 0, stream>>>(args);
    } else if (args.kernel == 7) {
      columns_kernel<T, 7><<<grid, kColumnThreads, 0, stream>>>(args);
    } else {
      columns_kernel<T, 0><<<grid, kColumnThreads, 0, stream>>>(args);
    }
  });
  check_launch("image_columns");
}

}  // namespace dstrain::kernels::cuda
