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
      const bool inside =
          channel < a.channels && y >= 0 && y < a.height && x >= 0 && x < a.width;
      out.value[j] = inside ? image[y * a.row_stride + x * a.column_stride +
                                    channel * a.channel_stride]
                            : from_float<T>(0);
    }
    store(a.columns, (n * pixels + pixel) * packs + pack, out);
  }
}

}  // namespace

void image_columns(const ImageColumns& args, cudaStream_t stream) {
  const std::int64_t work = static_cast<std::int64_t>(args.out_height) * args.out_width *
                            (args.columns_width / kPack);
  if (args.samples == 0 || work == 0) return;
  const dim3 grid(blocks_for(work, kColumnThreads),
                  static_cast<unsigned>(std::min(args.samples, kMaxGridSamples)));
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args.kernel == 3) {
      columns_kernel<T, 3><<<grid, kColumnThreads, 0, stream>>>(args);
    } else if (args.kernel == 7) {
      columns_kernel<T, 7><<<grid, kColumnThreads, 0, stream>>>(args);
    } else {
      columns_kernel<T, 0><<<grid, kColumnThreads, 0, stream>>>(args);
    }
  });
  check_launch("image_columns");
}

}  // namespace dstrain::kernels::cuda
