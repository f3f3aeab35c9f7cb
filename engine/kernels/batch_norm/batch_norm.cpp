#include "engine/kernels/batch_norm/batch_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "engine/kernels/conv/image_layout.h"

namespace dstrain::ops {
namespace {

/// Rows of the samples that count.
std::int64_t counted_rows(const at::Tensor& image, const at::Tensor& valid) {
  return (valid.defined() ? valid.item<int>() : image.size(0)) * image.size(1) * image.size(2);
}

/// The first `rows`, in fp32.
at::Tensor first_rows(const at::Tensor& image, std::int64_t rows) {
  return pixel_rows(image).narrow(0, 0, rows).to(at::kFloat);
}

/// Mean and variance of each channel from sums, in the sums' type.
struct Moments {
  at::Tensor mean, variance, count;
};

Moments moments_of(const at::Tensor& sums, const at::Tensor& shift) {
  const std::int64_t channels = (sums.numel() - 1) / 2;
  const at::Tensor count = sums.narrow(0, 2 * channels, 1),
                   some = count.clamp_min(1);  // without samples the shift and no variance
  const at::Tensor mean = sums.narrow(0, 0, channels) / some,
                   square = sums.narrow(0, channels, channels) / some;
  return {shift + mean, (square - mean * mean).clamp_min_(0), count};
}

struct Rows {
  at::Tensor normalised, dz;  ///< [N, C] fp32
};

Rows gradient_rows(const NormalisedGradient& of) {
  const ChannelStatistics& statistics = of.how.statistics;
  const std::int64_t rows = counted_rows(of.x, of.valid);
  at::Tensor normalised = first_rows(of.x, rows).sub(statistics.mean()).mul_(statistics.rstd());
  at::Tensor dz = first_rows(of.dy, rows);
  if (of.y.defined()) {
    dz = at::threshold_backward(dz, first_rows(of.y, rows), 0);
  } else if (of.how.activation != ImageActivation::none) {
    const at::Tensor z =
        normalised.mul(of.how.weight.to(at::kFloat)).add_(of.how.bias.to(at::kFloat));
    dz = activation_gradient(dz, z, of.how.activation);
  }
  return {std::move(normalised), std::move(dz)};
}

/// The rows that count as an image like `image`, whose fillers are 0.
at::Tensor as_image(const at::Tensor& rows, const at::Tensor& image) {
  if (rows.numel() == image.numel()) return rows.to(image.scalar_type()).view(image.sizes());
  at::Tensor whole = at::zeros_like(image);
  pixel_rows(whole).narrow(0, 0, rows.size(0)).copy_(rows);
  return whole;
}

}  // namespace

at::Tensor batch_norm_sums(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& valid) {
  const auto rows = static_cast<double>(counted_rows(x, valid));
  const at::Tensor d = first_rows(x, counted_rows(x, valid)).sub(shift);
  const at::Tensor sum = d.sum(0, false, at::kDouble);
  // Squares about the mean: those of d, rounded in fp32, would not do where d is mostly its mean.
  const at::Tensor mean = (sum / std::max(1.0, rows)).to(at::kFloat);
  const at::Tensor centred = d.sub(mean), wide = mean.to(at::kDouble);
  const at::Tensor squares = centred.square_().sum(0, false, at::kDouble);
  return at::cat({sum, squares + wide * (sum * 2 - wide * rows), at::full({1}, rows, at::kDouble)});
}

ChannelStatistics statistics_of_sums(const at::Tensor& sums, const at::Tensor& shift, double eps) {
  const Moments moments = moments_of(sums, shift);
  return {at::cat({moments.mean, at::rsqrt(moments.variance + eps), moments.count}).to(at::kFloat)};
}

ChannelStatistics fixed_statistics(const at::Tensor& mean, const at::Tensor& variance, double eps) {
  return {at::cat({mean, at::rsqrt(variance + eps), at::zeros({1}, mean.options())})};
}

void add_step_statistics(const at::Tensor& sums, const at::Tensor& shift, const at::Tensor& samples,
                         const at::Tensor& mean_sum, const at::Tensor& variance_sum) {
  const Moments moments = moments_of(sums, shift);
  const at::Tensor unbiased =
      moments.variance * (moments.count / (moments.count - 1).clamp_min_(1));
  mean_sum.add_((moments.mean * samples).to(at::kFloat));
  variance_sum.add_((unbiased * samples).to(at::kFloat));
}

at::Tensor batch_norm_apply(const at::Tensor& x, const Normalisation& how,
                            const at::Tensor& residual) {
  at::Tensor z = pixel_rows(x)
                     .to(at::kFloat)
                     .sub(how.statistics.mean())
                     .mul_(how.statistics.rstd())
                     .mul_(how.weight.to(at::kFloat))
                     .add_(how.bias.to(at::kFloat));
  if (residual.defined()) z.add_(pixel_rows(residual));
  return activate(z, how.activation).to(x.scalar_type()).view(x.sizes());
}

at::Tensor batch_norm_gradient_sums(const NormalisedGradient& of) {
  const Rows rows = gradient_rows(of);
  return at::cat({rows.dz.sum(0, false, at::kDouble),
                  rows.dz.mul(rows.normalised).sum(0, false, at::kDouble)});
}

at::Tensor batch_norm_input_gradient(const NormalisedGradient& of, const at::Tensor& sums) {
  const ChannelStatistics& statistics = of.how.statistics;
  Rows rows = gradient_rows(of);
  at::Tensor dx = rows.dz;
  if (sums.defined()) {
    const at::Tensor means = (sums / statistics.count().clamp_min(1)).to(at::kFloat);
    const std::int64_t channels = statistics.channels();
    dx = dx.sub(means.narrow(0, 0, channels))
             .sub_(rows.normalised.mul_(means.narrow(0, channels, channels)));
  }
  return as_image(dx.mul(statistics.rstd() * of.how.weight.to(at::kFloat)), of.x);
}

at::Tensor batch_norm_residual_gradient(const NormalisedGradient& of) {
  return as_image(gradient_rows(of).dz, of.x);
}

}  // namespace dstrain::ops
