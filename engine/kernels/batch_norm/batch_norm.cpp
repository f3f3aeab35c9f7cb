#include "engine/kernels/batch_norm/batch_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "engine/kernels/conv/image_layout.h"

namespace dstrain::ops {
namespace {

at::ScalarType sum_type(const at::Tensor& x) { return x.is_cuda() ? at::kFloat : at::kDouble; }

/// The rows that count. On a CPU the others are left out; on a GPU, whose host does not know their
/// number, a mask [M, 1] makes them 0.
class ValidRows {
 public:
  ValidRows(const at::Tensor& image, const at::Tensor& valid)
      : rows_(image.numel() / image.size(3)), per_sample_(image.size(1) * image.size(2)) {
    if (!valid.defined()) return;
    if (image.is_cuda()) {
      const at::Tensor sample =
          at::arange(rows_, valid.options().dtype(at::kLong)).floor_divide_(per_sample_);
      mask_ = sample.lt(valid).to(at::kFloat).unsqueeze(1);
      count_ = valid.to(at::kFloat) * per_sample_;
    } else {
      rows_ = valid.item<int>() * per_sample_;
    }
  }

  /// In fp32.
  [[nodiscard]] at::Tensor of(const at::Tensor& image) const {
    const at::Tensor rows = pixel_rows(image).narrow(0, 0, rows_).to(at::kFloat);
    return mask_.defined() ? rows * mask_ : rows;
  }
  /// fp32 rows made of rows as above.
  [[nodiscard]] at::Tensor masked(const at::Tensor& rows) const {
    return mask_.defined() ? rows * mask_ : rows;
  }
  /// N, [1].
  [[nodiscard]] at::Tensor count(const at::TensorOptions& options) const {
    return count_.defined() ? count_.to(options.dtype()).reshape({1})
                            : at::full({1}, static_cast<double>(rows_), options);
  }
  [[nodiscard]] std::int64_t rows() const { return rows_; }

 private:
  std::int64_t rows_, per_sample_;
  at::Tensor mask_, count_;
};

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

Rows gradient_rows(const NormalisedGradient& of, const ValidRows& valid) {
  const ChannelStatistics& statistics = of.how.statistics;
  const at::Tensor x = pixel_rows(of.x).narrow(0, 0, valid.rows()).to(at::kFloat);
  at::Tensor normalised = x.sub(statistics.mean()).mul_(statistics.rstd());
  at::Tensor dz = valid.of(of.dy);
  if (of.y.defined()) {
    dz = at::threshold_backward(dz, pixel_rows(of.y).narrow(0, 0, valid.rows()).to(at::kFloat), 0);
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
  const ValidRows rows(x, valid);
  const at::Tensor d = rows.masked(rows.of(x).sub(shift));
  const at::ScalarType type = sum_type(x);
  return at::cat(
      {d.sum(0, false, type), d.mul(d).sum(0, false, type), rows.count(x.options().dtype(type))});
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
  const Rows rows = gradient_rows(of, ValidRows(of.x, of.valid));
  const at::ScalarType type = sum_type(of.x);
  return at::cat({rows.dz.sum(0, false, type), rows.dz.mul(rows.normalised).sum(0, false, type)});
}

at::Tensor batch_norm_input_gradient(const NormalisedGradient& of, const at::Tensor& sums) {
  const ValidRows valid(of.x, of.valid);
  const ChannelStatistics& statistics = of.how.statistics;
  Rows rows = gradient_rows(of, valid);
  at::Tensor dx = rows.dz;
  if (sums.defined()) {
    const at::Tensor means = (sums / statistics.count().clamp_min(1)).to(at::kFloat);
    const std::int64_t channels = statistics.channels();
    dx = dx.sub(means.narrow(0, 0, channels))
             .sub_(rows.normalised.mul_(means.narrow(0, channels, channels)));
  }
  dx = valid.masked(dx.mul(statistics.rstd() * of.how.weight.to(at::kFloat)));
  return as_image(dx, of.x);
}

at::Tensor batch_norm_residual_gradient(const NormalisedGradient& of) {
  const ValidRows valid(of.x, of.valid);
  return as_image(gradient_rows(of, valid).dz, of.x);
}

}  // namespace dstrain::ops
