#include "engine/kernels/image/mix.h"

#include <ATen/Parallel.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/TypeCast.h>

#include "engine/base/error.h"
#include "engine/kernels/image/mix_math.h"

namespace dstrain {
namespace {

ImageType image_type(const at::Tensor& images) {
  switch (images.scalar_type()) {
    case at::kFloat:
      return ImageType::fp32;
    case at::kBFloat16:
      return ImageType::bf16;
    case at::kHalf:
      return ImageType::fp16;
    default:
      DSTRAIN_CHECK(false, "images must be fp32, bf16 or fp16");
  }
  return ImageType::fp32;
}

bool is_list(const at::Tensor& tensor, at::IntArrayRef sizes, at::ScalarType type,
             const at::Tensor& images) {
  return tensor.sizes() == sizes && tensor.scalar_type() == type && tensor.is_contiguous() &&
         tensor.device() == images.device();
}

ImageLayout layout_of(const at::Tensor& images, std::int64_t batch) {
  const bool first = images.is_contiguous();
  DSTRAIN_CHECK(images.dim() == 4 && images.size(2) == images.size(3) && batch > 0 &&
                    images.size(0) % batch == 0 &&
                    (first || images.is_contiguous(at::MemoryFormat::ChannelsLast)),
                "images must be [B * T, C, S, S], dense");
  const std::int64_t channels = images.size(1), size = images.size(2);
  return {.batch = batch,
          .images = static_cast<int>(images.size(0) / batch),
          .channels = static_cast<int>(channels),
          .size = static_cast<int>(size),
          .channel_stride = first ? size * size : 1,
          .pixel_stride = first ? 1 : channels};
}

/// Calls `body` with the host's values.
template <class Body>
void with_values(at::Tensor& images, const Body& body) {
  switch (image_type(images)) {
    case ImageType::fp32:
      return body(images.mutable_data_ptr<float>());
    case ImageType::bf16:
      return body(images.mutable_data_ptr<c10::BFloat16>());
    case ImageType::fp16:
      return body(images.mutable_data_ptr<c10::Half>());
  }
}

/// The definition that the GPU kernel repeats.
template <class T>
void erase_sample(const ImageErase& a, std::int64_t row, T* images) {
  if (a.samples[row] < 0) return;
  for (std::int64_t pixel = 0; pixel < a.layout.pixels(); ++pixel) {
    if (!mix_math::inside(a.windows + row * 4, pixel, a.layout.size)) continue;
    for (int plane = 0; plane < a.layout.planes(); ++plane)
      images[a.layout.at(row, plane, pixel)] =
          c10::convert<T>(mix_math::fill_value(a, a.samples[row], plane, pixel));
  }
}

/// The definition that the GPU kernel repeats: both of a pair at once.
template <class T>
void mix_pair(const ImageMix& a, std::int64_t row, T* images) {
  const std::int64_t other = *a.valid - 1 - row;
  if (other <= row) return;
  for (int plane = 0; plane < a.layout.planes(); ++plane) {
    for (std::int64_t pixel = 0; pixel < a.layout.pixels(); ++pixel) {
      T& one = images[a.layout.at(row, plane, pixel)];
      T& two = images[a.layout.at(other, plane, pixel)];
      const auto x = static_cast<float>(one), y = static_cast<float>(two);
      one = c10::convert<T>(mix_math::mixed(a, row, pixel, x, y));
      two = c10::convert<T>(mix_math::mixed(a, other, pixel, y, x));
    }
  }
}

}  // namespace

void erase(at::Tensor& images, const at::Tensor& windows, const at::Tensor& samples,
           const EraseOptions& options) {
  const std::int64_t batch = samples.numel();
  DSTRAIN_CHECK(is_list(samples, {batch}, at::kLong, images) &&
                    is_list(windows, {batch, 4}, at::kInt, images),
                "samples must be [B] int64, rectangles [B, 4] int32");
  const ImageErase args = {
      .layout = layout_of(images, batch),
      .windows = windows.const_data_ptr<std::int32_t>(),
      .samples = samples.const_data_ptr<std::int64_t>(),
      .noise = options.noise,
      .key = random_key(static_cast<std::uint64_t>(options.seed), RandomStream::augment),
      .epoch = options.epoch};
  if (images.is_cuda()) {
    const c10::cuda::CUDAGuard guard(images.device());
    return cuda::erase(args, image_type(images), images.mutable_data_ptr(),
                       c10::cuda::getCurrentCUDAStream().stream());
  }
  with_values(images, [&](auto* values) {
    at::parallel_for(0, batch, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) erase_sample(args, row, values);
    });
  });
}

void mix(at::Tensor& images, const at::Tensor& shares, const at::Tensor& windows,
         const at::Tensor& valid) {
  const std::int64_t batch = shares.numel();
  DSTRAIN_CHECK(is_list(shares, {batch}, at::kFloat, images) &&
                    is_list(windows, {batch, 4}, at::kInt, images) &&
                    is_list(valid, {}, at::kInt, images),
                "shares must be [B] fp32, rectangles [B, 4] int32, valid [] int32");
  const ImageMix args = {.layout = layout_of(images, batch),
                         .shares = shares.const_data_ptr<float>(),
                         .windows = windows.const_data_ptr<std::int32_t>(),
                         .valid = valid.const_data_ptr<std::int32_t>()};
  if (images.is_cuda()) {
    const c10::cuda::CUDAGuard guard(images.device());
    return cuda::mix(args, image_type(images), images.mutable_data_ptr(),
                     c10::cuda::getCurrentCUDAStream().stream());
  }
  with_values(images, [&](auto* values) {
    at::parallel_for(0, (batch + 1) / 2, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) mix_pair(args, row, values);
    });
  });
}

}  // namespace dstrain
