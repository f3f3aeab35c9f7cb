#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>

#include "engine/base/error.h"
#include "engine/kernels/image/augment_math.h"

namespace dstrain {
namespace {

using namespace augment_math;
constexpr int kBlock = 256, kMaxBlocksPerImage = 16;

template <class T>
__device__ T convert(float value);
template <>
__device__ float convert(float value) {
  return value;
}
template <>
__device__ __nv_bfloat16 convert(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __half convert(float value) {
  return __float2half_rn(value);
}

/// A block writes kBlock neighbouring pixels of one image at a time, all channels; its random
/// choices are made once, which takes longer than a pixel.
template <class T>
__global__ void augment_kernel(const ImageAugment a, T* out, int blocks_per_image) {
  const std::int64_t item = blockIdx.x / blocks_per_image;
  __shared__ Window window;
  const std::int64_t sample = a.samples[item / a.frames];
  if (threadIdx.x == 0) window = choose_window(a, sample);
  __syncthreads();

  const int plane = a.size * a.size;
  const bool filler = sample < 0;
  const std::int64_t image_bytes = std::int64_t{a.height} * a.width * a.channels;
  const std::uint8_t* image = a.pixels + item * image_bytes;
  for (int pixel =
           static_cast<int>(blockIdx.x % blocks_per_image) * kBlock + static_cast<int>(threadIdx.x);
       pixel < plane; pixel += blocks_per_image * kBlock) {
    const int x = pixel % a.size;
    const Tap row = make_tap(pixel / a.size, a.crop_height, a.size);
    const Tap column = make_tap(window.flip ? a.size - 1 - x : x, a.crop_width, a.size);
    T* to = out + item * a.channels * plane + pixel;
    for (int channel = 0; channel < a.channels; ++channel) {
      const float value = filler ? 0.0f : value_at(a, image, window, row, column, channel);
      to[std::int64_t{channel} * plane] = convert<T>(value);
    }
  }
}

template <class T>
void launch(const ImageAugment& args, void* out, cudaStream_t stream) {
  const int blocks_per_image =
      std::min((args.size * args.size + kBlock - 1) / kBlock, kMaxBlocksPerImage);
  const auto blocks = static_cast<unsigned>(args.batch * blocks_per_image);
  augment_kernel<T><<<blocks, kBlock, 0, stream>>>(args, static_cast<T*>(out), blocks_per_image);
}

}  // namespace

void cuda::augment(const ImageAugment& args, ImageType type, void* out, cudaStream_t stream) {
  switch (type) {
    case ImageType::fp32:
      launch<float>(args, out, stream);
      break;
    case ImageType::bf16:
      launch<__nv_bfloat16>(args, out, stream);
      break;
    case ImageType::fp16:
      launch<__half>(args, out, stream);
      break;
  }
  const cudaError_t error = cudaGetLastError();
  DSTRAIN_CHECK(error == cudaSuccess, std::string("augment: ") + cudaGetErrorString(error));
}

}  // namespace dstrain
