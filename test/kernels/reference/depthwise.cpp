#include <vector>

#include "test/kernels/reference/image_activation.h"
#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

/// Depthwise convolutions as their definition reads, in double. Partial sums lie in the first row;
/// the others are zero.
namespace dstrain::kernels::reference {
namespace {

/// Calls body(input element, tap) for what output (oy, ox) of a sample and channel is made of.
template <typename Body>
void for_taps(const DepthwiseShape& s, std::int64_t sample, std::int64_t oy, std::int64_t ox,
              std::int64_t channel, const Body& body) {
  for (int tap = 0; tap < s.kernel * s.kernel; ++tap) {
    const std::int64_t y = oy * s.stride - s.before + tap / s.kernel,
                       x = ox * s.stride - s.before + tap % s.kernel;
    if (y < 0 || y >= s.height || x < 0 || x >= s.width) continue;
    body(((sample * s.height + y) * s.width + x) * s.channels + channel, tap);
  }
}

/// Calls body(output element, sample, oy, ox, channel) for each.
template <typename Body>
void for_outputs(const DepthwiseShape& s, std::int64_t samples, const Body& body) {
  for (std::int64_t i = 0; i < samples * s.out_height * s.out_width * s.channels; ++i) {
    const std::int64_t pixel = i / s.channels, row = pixel / s.out_width;
    body(i, row / s.out_height, row % s.out_height, pixel % s.out_width, i % s.channels);
  }
}

/// What the convolution sees, and the derivative there.
template <typename Args>
double seen(const Args& a, std::int64_t i) {
  const std::int64_t channel = i % a.shape.channels;
  const double x = View(a.x, a.dtype).at(i);
  if (a.scale == nullptr) return x;
  return stored(
      activated(x * channel_value(a.scale, channel, 1) + channel_value(a.shift, channel, 0),
                a.activation),
      a.dtype);
}

/// The gradient of output element i, rounded.
double output_gradient(const DepthwiseBackward& a, std::int64_t i) {
  const FollowingNorm& f = a.following;
  const DepthwiseShape& s = a.shape;
  double grad = View(a.grad, a.dtype).at(i);
  if (f.y == nullptr) return grad;
  const std::int64_t channel = i % s.channels, pixels = s.out_height * s.out_width,
                     at = i / s.channels / pixels * s.channels + channel;
  const double y = View(f.y, a.dtype).at(i), scale = channel_value(f.scale, channel, 1);
  if (f.gate != nullptr) {
    grad = grad * static_cast<double>(f.gate[at]) +
           static_cast<double>(f.grad_mean[at]) / static_cast<double>(pixels);
  }
  const double dz =
      grad * activation_slope(y * scale + channel_value(f.shift, channel, 0), f.activation);
  return stored(scale * dz +
                    (y - channel_value(f.mean, channel, 0)) * channel_value(f.slope, channel, 0) +
                    channel_value(f.offset, channel, 0),
                a.dtype);
}

void store_sums(const std::vector<double>& sums, std::int64_t partials, float* partial) {
  const auto numbers = static_cast<std::int64_t>(sums.size());
  for (std::int64_t i = 0; i < partials * numbers; ++i)
    partial[i] = i < numbers ? static_cast<float>(sums[static_cast<std::size_t>(i)]) : 0;
}

}  // namespace

void depthwise(const Depthwise& a) {
  const DepthwiseShape& s = a.shape;
  const View weight(a.weight, a.dtype), y(a.y, a.dtype);
  std::vector<double> sums(static_cast<std::size_t>(2 * s.channels));
  for (std::int64_t channel = 0; a.partial != nullptr && channel < s.channels; ++channel) {
    double sum = 0;
    for_taps(s, 0, s.out_height / 2, s.out_width / 2, channel, [&](std::int64_t from, int tap) {
      sum += seen(a, from) * weight.at(channel * s.kernel * s.kernel + tap);
    });
    a.centre[channel] = static_cast<float>(sum);
  }
  for_outputs(s, s.samples,
              [&](std::int64_t i, std::int64_t sample, std::int64_t oy, std::int64_t ox,
                  std::int64_t channel) {
                double sum = 0;
                for_taps(s, sample, oy, ox, channel, [&](std::int64_t from, int tap) {
                  sum += seen(a, from) * weight.at(channel * s.kernel * s.kernel + tap);
                });
                y.set(i, sum);
                if (sample >= counted_samples(a.valid, s.samples)) return;
                const double off = y.at(i) - channel_value(a.centre, channel, 0);
                sums[static_cast<std::size_t>(channel)] += off;
                sums[static_cast<std::size_t>(s.channels + channel)] += off * off;
              });
  if (a.partial != nullptr) store_sums(sums, depthwise_partials(s, a.dtype), a.partial);
}

void depthwise_backward(const DepthwiseBackward& a) {
  const DepthwiseShape& s = a.shape;
  const View x(a.x, a.dtype), weight(a.weight, a.dtype), grad_x(a.grad_x, a.dtype);
  const std::int64_t taps = s.kernel * s.kernel;
  std::vector<double> dx(static_cast<std::size_t>(s.samples * s.height * s.width * s.channels)),
      dw(static_cast<std::size_t>(s.channels * taps)),
      sums(static_cast<std::size_t>(2 * s.channels));
  for_outputs(s, counted_samples(a.valid, s.samples),
              [&](std::int64_t i, std::int64_t sample, std::int64_t oy, std::int64_t ox,
                  std::int64_t channel) {
                const double grad = output_gradient(a, i);
                for_taps(s, sample, oy, ox, channel, [&](std::int64_t from, int tap) {
                  const std::int64_t at = channel * taps + tap;
                  dx[static_cast<std::size_t>(from)] += grad * weight.at(at);
                  dw[static_cast<std::size_t>(at)] += grad * seen(a, from);
                });
              });
  for (std::size_t i = 0; i < dx.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i), channel = at % s.channels;
    const double z =
        x.at(at) * channel_value(a.scale, channel, 1) + channel_value(a.shift, channel, 0);
    grad_x.set(at, dx[i] * (a.scale == nullptr ? 1 : activation_slope(z, a.activation)));
    sums[static_cast<std::size_t>(channel)] += grad_x.at(at);
    sums[static_cast<std::size_t>(s.channels + channel)] +=
        grad_x.at(at) * (x.at(at) - channel_value(a.mean, channel, 0));
  }
  if (a.partial != nullptr) store_sums(sums, depthwise_backward_partials(s, a.dtype), a.partial);
  if (a.grad_weight == nullptr) return;
  for (std::size_t i = 0; i < dw.size(); ++i) {
    if (a.write_weight) a.grad_weight[i] = 0;
    add_to(a.grad_weight[i], dw[i]);
  }
}

}  // namespace dstrain::kernels::reference
