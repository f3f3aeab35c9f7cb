#include <cmath>

#include "engine/kernels/activation/drop_draw.h"
#include "engine/kernels/host_view.h"
#include "test/kernels/reference/image_activation.h"
#include "test/kernels/reference/reference.h"

/// Batch norm as its definition reads, in double. Partial sums lie in the first row; the others are
/// zero.
namespace dstrain::kernels::reference {
namespace {

template <typename Args>
double normalised(const Args& a, double x, std::int64_t channel) {
  return x * channel_value(a.scale, channel, 1) + channel_value(a.shift, channel, 0);
}

/// dz of element i of a channel.
template <typename Args>
double before_activation(const Args& a, std::int64_t i, std::int64_t channel) {
  const View x(a.x, a.dtype), y(a.y, a.dtype), grad(a.grad_y, a.dtype);
  if (y) return y.at(i) > 0 ? grad.at(i) : 0;
  return grad.at(i) * activation_slope(normalised(a, x.at(i), channel), a.activation);
}

/// By which the branch of a sample is multiplied.
double drop_factor(const DropSamples& drop, std::int64_t sample) {
  if (drop.seed == nullptr) return 1;
  const std::uint64_t key = dropout_key(static_cast<std::uint64_t>(*drop.seed), drop.place);
  constexpr int kElements = DropDraw::kElements;
  const Philox words = DropDraw::words_of(key, static_cast<std::uint64_t>(sample / kElements));
  return DropDraw::of(drop.share).factor_of(words, static_cast<int>(sample % kElements));
}

/// Calls body(element, channel, sample) for each element.
template <typename Body>
void for_elements(std::int64_t samples, std::int64_t pixels, std::int64_t channels,
                  const Body& body) {
  for (std::int64_t i = 0; i < samples * pixels * channels; ++i)
    body(i, i % channels, i / channels / pixels);
}

/// The sums of two numbers, by channel, into the first row of `partial`.
template <typename Body>
void two_sums(std::int64_t samples, std::int64_t pixels, std::int64_t channels,
              std::int64_t partials, float* partial, const Body& body) {
  for (std::int64_t i = 0; i < partials * 2 * channels; ++i) partial[i] = 0;
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    double first = 0, second = 0;
    for (std::int64_t row = 0; row < samples * pixels; ++row) {
      const auto [a, b] = body(row * channels + channel, channel);
      first += a, second += b;
    }
    partial[channel] = static_cast<float>(first);
    partial[channels + channel] = static_cast<float>(second);
  }
}

double total_of(const float* partial, std::int64_t partials, std::int64_t channels, int k,
                std::int64_t channel) {
  double total = 0;
  for (std::int64_t row = 0; row < partials; ++row)
    total += static_cast<double>(partial[(row * 2 + k) * channels + channel]);
  return total;
}

template <typename Args>
void fold(const Args& a, double mean, double rstd, std::int64_t channel) {
  const double scale = View(a.weight, a.dtype).at(channel) * rstd;
  a.scale[channel] = static_cast<float>(scale);
  a.shift[channel] = static_cast<float>(View(a.bias, a.dtype).at(channel) - mean * scale);
}

}  // namespace

void batch_norm_sums(const BatchNormSums& a) {
  const View x(a.x, a.dtype);
  for (std::int64_t channel = 0; channel < a.channels; ++channel)
    a.centre[channel] = static_cast<float>(x.at(a.centre_pixel * a.channels + channel));
  two_sums(counted_samples(a.valid, a.samples), a.pixels, a.channels,
           batch_norm_partials(a.samples, a.pixels, a.channels), a.partial,
           [&](std::int64_t i, std::int64_t channel) {
             const double off = x.at(i) - static_cast<double>(a.centre[channel]);
             return std::pair(off, off * off);
           });
}

void batch_norm_move_sums(const BatchNormMoveSums& a) {
  const auto count = static_cast<double>(counted_samples(a.valid, a.samples) * a.pixels);
  a.sums[2 * a.channels] = count;
  for (std::int64_t channel = 0; channel < a.channels; ++channel) {
    const double sum = total_of(a.partial, a.partials, a.channels, 0, channel),
                 squares = total_of(a.partial, a.partials, a.channels, 1, channel),
                 off = static_cast<double>(a.centre[channel]) -
                       static_cast<double>(a.origin[channel]);
    a.sums[channel] = sum + count * off;
    a.sums[a.channels + channel] = squares + 2 * off * sum + count * off * off;
  }
}

void batch_norm_add_sums(const BatchNormAddSums& a) {
  for (std::int64_t channel = 0; channel < a.channels; ++channel) {
    const auto rstd = static_cast<double>(a.rstd[channel]);
    a.sums[channel] = static_cast<float>(total_of(a.partial, a.partials, a.channels, 0, channel));
    a.sums[a.channels + channel] =
        static_cast<float>(rstd * total_of(a.partial, a.partials, a.channels, 1, channel));
  }
}

void batch_norm_finish(const BatchNormFinish& a) {
  const auto samples = static_cast<double>(counted_samples(a.valid, a.samples));
  const double count =
      a.shared == nullptr ? samples * static_cast<double>(a.pixels) : a.shared[2 * a.channels];
  *a.count = static_cast<float>(count);
  for (std::int64_t channel = 0; channel < a.channels; ++channel) {
    const auto mean_of = [&](int k) {
      const double sum = a.shared == nullptr
                             ? total_of(a.partial, a.partials, a.channels, k, channel)
                             : a.shared[k * a.channels + channel];
      return sum / std::max(1.0, count);
    };
    const double off = mean_of(0), mean = static_cast<double>(a.centre[channel]) + off,
                 variance = std::max(0.0, mean_of(1) - off * off),
                 rstd = 1 / std::sqrt(variance + static_cast<double>(a.eps));
    a.mean[channel] = static_cast<float>(mean);
    a.rstd[channel] = static_cast<float>(rstd);
    if (a.mean_sum != nullptr) {
      add_to(a.mean_sum[channel], samples * mean);
      add_to(a.variance_sum[channel], samples * variance * count / std::max(1.0, count - 1));
    }
    // From the numbers that are kept, as batch_norm_fold has them.
    fold(a, static_cast<double>(a.mean[channel]), static_cast<double>(a.rstd[channel]), channel);
  }
}

void batch_norm_fold(const BatchNormFold& a) {
  for (std::int64_t channel = 0; channel < a.channels; ++channel) {
    fold(a, static_cast<double>(a.mean[channel]), static_cast<double>(a.rstd[channel]), channel);
  }
}

void batch_norm_apply(const BatchNormApply& a) {
  const View x(a.x, a.dtype), residual(a.residual, a.dtype), y(a.y, a.dtype);
  for_elements(a.samples, a.pixels, a.channels,
               [&](std::int64_t i, std::int64_t channel, std::int64_t sample) {
                 const double added =
                     residual ? residual.at(i) * channel_value(a.residual_scale, channel, 1) +
                                    channel_value(a.residual_shift, channel, 0)
                              : 0;
                 const double z =
                     normalised(a, x.at(i), channel) * drop_factor(a.drop, sample) + added;
                 const double result = activated(z, a.activation);
                 y.set(i, a.gate == nullptr
                              ? result
                              : stored(result, a.dtype) *
                                    static_cast<double>(a.gate[sample * a.channels + channel]));
               });
}

void batch_norm_backward_sums(const BatchNormBackwardSums& a) {
  const View x(a.x, a.dtype);
  two_sums(counted_samples(a.valid, a.samples), a.pixels, a.channels,
           batch_norm_partials(a.samples, a.pixels, a.channels), a.partial,
           [&](std::int64_t i, std::int64_t channel) {
             const double dz =
                 before_activation(a, i, channel) * drop_factor(a.drop, i / a.channels / a.pixels);
             return std::pair(dz, dz * (x.at(i) - static_cast<double>(a.mean[channel])));
           });
  const View grad_residual(a.grad_residual, a.dtype);
  if (!grad_residual) return;
  const std::int64_t valid = counted_samples(a.valid, a.samples);
  for_elements(a.samples, a.pixels, a.channels,
               [&](std::int64_t i, std::int64_t channel, std::int64_t sample) {
                 grad_residual.set(i, sample < valid ? before_activation(a, i, channel) : 0);
               });
}

void batch_norm_backward_finish(const BatchNormBackwardFinish& a) {
  const auto count = static_cast<double>(*a.count);
  for (std::int64_t channel = 0; channel < a.channels; ++channel) {
    const auto rstd = static_cast<double>(a.rstd[channel]),
               scale = static_cast<double>(a.scale[channel]);
    const double sum = total_of(a.partial, a.partials, a.channels, 0, channel),
                 along = rstd * total_of(a.partial, a.partials, a.channels, 1, channel);
    const double all = channel_value(a.all_sums, channel, sum),
                 all_along = a.all_sums == nullptr
                                 ? along
                                 : static_cast<double>(a.all_sums[a.channels + channel]);
    a.slope[channel] = static_cast<float>(count > 0 ? -scale * rstd * all_along / count : 0);
    a.offset[channel] = static_cast<float>(count > 0 ? -scale * all / count : 0);
    if (a.grad_weight != nullptr) add_to(a.grad_weight[channel], along);
    if (a.grad_bias != nullptr) add_to(a.grad_bias[channel], sum);
  }
}

void batch_norm_backward_apply(const BatchNormBackwardApply& a) {
  const View x(a.x, a.dtype), grad_x(a.grad_x, a.dtype), grad_residual(a.grad_residual, a.dtype);
  const std::int64_t valid = counted_samples(a.valid, a.samples);
  for_elements(a.samples, a.pixels, a.channels,
               [&](std::int64_t i, std::int64_t channel, std::int64_t sample) {
                 const double dz = sample < valid ? before_activation(a, i, channel) : 0,
                              off = x.at(i) - channel_value(a.mean, channel, 0);
                 const double dx =
                     channel_value(a.scale, channel, 1) * dz * drop_factor(a.drop, sample) +
                     off * channel_value(a.slope, channel, 0) + channel_value(a.offset, channel, 0);
                 if (grad_residual) grad_residual.set(i, dz);
                 grad_x.set(i, sample < valid ? dx : 0);
               });
}

void squeeze(const Squeeze& a) {
  const View x(a.x, a.dtype), mean(a.mean, a.dtype);
  const Activation activation = a.scale == nullptr ? Activation::none : a.activation;
  for (std::int64_t i = 0; i < a.samples * a.channels; ++i) {
    double sum = 0;
    for (std::int64_t pixel = 0; pixel < a.pixels; ++pixel) {
      const std::int64_t row = i / a.channels * a.pixels + pixel, channel = i % a.channels;
      sum += stored(activated(normalised(a, x.at(row * a.channels + channel), channel), activation),
                    a.dtype);
    }
    mean.set(i, sum / static_cast<double>(a.pixels));
  }
}

void gate_backward_sums(const GateBackwardSums& a) {
  const View x(a.x, a.dtype), grad_y(a.grad_y, a.dtype), y(a.y, a.dtype);
  for (std::int64_t sample = 0; sample < a.samples; ++sample) {
    for (std::int64_t channel = 0; channel < a.channels; ++channel) {
      double sum[5] = {};
      for (std::int64_t pixel = 0; pixel < a.pixels; ++pixel) {
        const std::int64_t i = (sample * a.pixels + pixel) * a.channels + channel;
        const double z = normalised(a, x.at(i), channel), grad = grad_y.at(i),
                     slope = activation_slope(z, a.activation),
                     off = x.at(i) - static_cast<double>(a.mean[channel]),
                     activation = stored(activated(z, a.activation), a.dtype);
        if (a.y != nullptr)
          y.set(i, activation * static_cast<double>(a.gate[sample * a.channels + channel]));
        sum[0] += grad * activation;
        sum[1] += grad * slope;
        sum[2] += slope;
        sum[3] += grad * slope * off;
        sum[4] += slope * off;
      }
      a.grad_gate[sample * a.channels + channel] = static_cast<float>(sum[0]);
      for (int k = 0; k < 4; ++k)
        a.sums[(sample * 4 + k) * a.channels + channel] = static_cast<float>(sum[k + 1]);
    }
  }
}

void gate_backward_combine(const GateBackwardCombine& a) {
  for (std::int64_t channel = 0; channel < a.channels; ++channel) {
    double total[2] = {};
    for (std::int64_t n = 0; n < counted_samples(a.valid, a.samples); ++n) {
      const std::int64_t at = n * a.channels + channel;
      const double g = static_cast<double>(a.gate[at]),
                   p = static_cast<double>(a.grad_mean[at]) / static_cast<double>(a.pixels);
      const float* s = a.sums + n * 4 * a.channels + channel;
      for (int k = 0; k < 2; ++k) {
        total[k] += g * static_cast<double>(s[2 * k * a.channels]) +
                    p * static_cast<double>(s[(2 * k + 1) * a.channels]);
      }
    }
    a.partial[channel] = static_cast<float>(total[0]);
    a.partial[a.channels + channel] = static_cast<float>(total[1]);
  }
}

void spread_mean(const SpreadMean& a) {
  const View grad(a.grad, a.dtype), grad_x(a.grad_x, a.dtype);
  for_elements(a.samples, a.pixels, a.channels,
               [&](std::int64_t i, std::int64_t channel, std::int64_t sample) {
                 grad_x.set(i,
                            grad.at(sample * a.channels + channel) / static_cast<double>(a.pixels));
               });
}

}  // namespace dstrain::kernels::reference
