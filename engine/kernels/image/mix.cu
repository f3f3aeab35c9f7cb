#include "engine/kernels/device.cuh"
#include "engine/kernels/image/mix_math.h"

namespace dstrain {
namespace {

using kernels::cuda::from_float;
using kernels::cuda::to_float;
constexpr int kMixBlock = 256;

/// A block has kMixBlock pixels of one sample, all channels.
template <class T>
__global__ void __launch_bounds__(kMixBlock) erase_kernel(const ImageErase a, T* images) {
  const std::int64_t row = blockIdx.y;
  const std::int64_t pixel = blockIdx.x * std::int64_t{kMixBlock} + threadIdx.x;
  if (a.samples[row] < 0 || pixel >= a.layout.pixels() ||
      !mix_math::inside(a.windows + row * 4, pixel, a.layout.size)) {
    return;
  }
  for (int plane = 0; plane < a.layout.planes(); ++plane)
    images[a.layout.at(row, plane, pixel)] =
        from_float<T>(mix_math::fill_value(a, a.samples[row], plane, pixel));
}

/// A thread has one pixel of both samples of a pair, so that no other thread reads what it writes.
template <class T>
__global__ void __launch_bounds__(kMixBlock) mix_kernel(const ImageMix a, T* images) {
  const std::int64_t row = blockIdx.y, other = *a.valid - 1 - row;
  const std::int64_t pixel = blockIdx.x * std::int64_t{kMixBlock} + threadIdx.x;
  if (other <= row || pixel >= a.layout.pixels()) return;
  for (int plane = 0; plane < a.layout.planes(); ++plane) {
    T& one = images[a.layout.at(row, plane, pixel)];
    T& two = images[a.layout.at(other, plane, pixel)];
    const float x = to_float(one), y = to_float(two);
    one = from_float<T>(mix_math::mixed(a, row, pixel, x, y));
    two = from_float<T>(mix_math::mixed(a, other, pixel, y, x));
  }
}

dim3 grid_of(const ImageLayout& layout, std::int64_t rows) {
  return {kernels::cuda::blocks_for(layout.pixels(), kMixBlock), static_cast<unsigned>(rows)};
}

/// Calls `body` with images of their type.
template <class Body>
void with_images(ImageType type, void* images, const Body& body) {
  switch (type) {
    case ImageType::fp32:
      return body(static_cast<float*>(images));
    case ImageType::bf16:
      return body(static_cast<__nv_bfloat16*>(images));
    case ImageType::fp16:
      return body(static_cast<__half*>(images));
  }
}

}  // namespace

void cuda::erase(const ImageErase& args, ImageType type, void* images, cudaStream_t stream) {
  with_images(type, images, [&](auto* values) {
    erase_kernel<<<grid_of(args.layout, args.layout.batch), kMixBlock, 0, stream>>>(args, values);
  });
  kernels::cuda::check_launch("erase");
}

void cuda::mix(const ImageMix& args, ImageType type, void* images, cudaStream_t stream) {
  with_images(type, images, [&](auto* values) {
    mix_kernel<<<grid_of(args.layout, (args.layout.batch + 1) / 2), kMixBlock, 0, stream>>>(args,
                                                                                            values);
  });
  kernels::cuda::check_launch("mix");
}

}  // namespace dstrain
