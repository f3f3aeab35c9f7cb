#include "engine/kernels/image/augment.h"

#include <ATen/Parallel.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/TypeCast.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/image/augment_math.h"

namespace dstrain {
namespace {

using namespace augment_math;

/// The definition that the GPU kernel repeats.
template <class T>
void augment_sample(const ImageAugment& a, std::int64_t item, T* out) {
  const std::int64_t values = std::int64_t{a.channels} * a.size * a.size;
  T* to = out + item * values;
  const std::int64_t sample = a.samples[item / a.frames];
  if (sample < 0) {
    std::fill_n(to, values, T(0.0f));
    return;
  }
  const std::uint8_t* image = a.pixels + item * a.height * a.width * a.channels;
  const Window window = choose_window(a, sample);
  std::vector<Tap> columns;
  for (int x = 0; x < a.size; ++x) {
    columns.push_back(make_tap(window.flip ? a.size - 1 - x : x, a.crop_width, a.size));
  }
  for (int channel = 0; channel < a.channels; ++channel) {
    for (int y = 0; y < a.size; ++y) {
      const Tap row = make_tap(y, a.crop_height, a.size);
      for (const Tap& column : columns) {
        *to++ = c10::convert<T>(value_at(a, image, window, row, column, channel));
      }
    }
  }
}

template <class T>
void augment_on_cpu(const ImageAugment& args, at::Tensor& out) {
  T* to = out.mutable_data_ptr<T>();
  at::parallel_for(0, args.batch, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) augment_sample(args, item, to);
  });
}

ImageAugment make_arguments(const at::Tensor& pixels, const at::Tensor& samples,
                            const AugmentOptions& o) {
  ImageAugment a{};
  a.pixels = pixels.const_data_ptr<std::uint8_t>();
  a.samples = samples.const_data_ptr<std::int64_t>();
  a.batch = pixels.size(0);
  a.frames = static_cast<int>(a.batch / std::max<std::int64_t>(1, samples.size(0)));
  a.height = static_cast<int>(pixels.size(1));
  a.width = static_cast<int>(pixels.size(2));
  a.channels = static_cast<int>(pixels.size(3));
  a.size = o.image_size;
  const bool cut = a.height >= a.size && a.width >= a.size;
  a.crop_height = cut ? a.size : a.height;
  a.crop_width = cut ? a.size : a.width;
  a.padding = o.crop_padding;
  a.random_crop = o.random_crop;
  a.horizontal_flip = o.horizontal_flip;
  a.key = random_key(static_cast<std::uint64_t>(o.seed), RandomStream::augment);
  a.epoch = o.epoch;
  for (int c = 0; c < a.channels; ++c) {
    a.scale[c] = static_cast<float>(o.scale / double{o.stddev[c]});
    a.bias[c] = -o.mean[c] / o.stddev[c];
  }
  return a;
}

void check_tensors(const at::Tensor& pixels, const at::Tensor& samples,
                   const AugmentOptions& options, const at::Tensor& out) {
  DSTRAIN_CHECK(pixels.dim() == 4 && pixels.scalar_type() == at::kByte && pixels.is_contiguous(),
                "pixels must be [B, H, W, C] uint8");
  const std::int64_t batch = pixels.size(0), channels = pixels.size(3), size = options.image_size;
  DSTRAIN_CHECK(channels == 1 || channels == 3, "images have 1 or 3 channels");
  DSTRAIN_CHECK(samples.dim() == 1 && batch % std::max<std::int64_t>(1, samples.size(0)) == 0 &&
                    samples.scalar_type() == at::kLong && samples.is_contiguous(),
                "samples must be [B] int64");
  DSTRAIN_CHECK(size > 0 && options.crop_padding >= 0, "wrong image size or padding");
  DSTRAIN_CHECK(
      out.is_contiguous() && out.sizes() == at::IntArrayRef({batch, channels, size, size}),
      "out must be [B, C, S, S]");
  DSTRAIN_CHECK(pixels.device() == out.device() && samples.device() == out.device(),
                "tensors must be on one device");
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  DSTRAIN_CHECK(pixels.numel() <= kLargest && out.numel() <= kLargest, "the batch is too large");
}

}  // namespace

void augment(const at::Tensor& pixels, const at::Tensor& samples, const AugmentOptions& options,
             at::Tensor& out) {
  check_tensors(pixels, samples, options, out);
  if (out.numel() == 0) return;
  const ImageAugment args = make_arguments(pixels, samples, options);
  const auto type = out.scalar_type();
  DSTRAIN_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf,
                "out must be fp32, bf16 or fp16");
  if (out.is_cuda()) {
    const c10::cuda::CUDAGuard guard(out.device());
    const auto image_type = type == at::kFloat      ? ImageType::fp32
                            : type == at::kBFloat16 ? ImageType::bf16
                                                    : ImageType::fp16;
    cuda::augment(args, image_type, out.mutable_data_ptr(),
                  c10::cuda::getCurrentCUDAStream().stream());
  } else if (type == at::kFloat) {
    augment_on_cpu<float>(args, out);
  } else if (type == at::kBFloat16) {
    augment_on_cpu<c10::BFloat16>(args, out);
  } else {
    augment_on_cpu<c10::Half>(args, out);
  }
}

}  // namespace dstrain
