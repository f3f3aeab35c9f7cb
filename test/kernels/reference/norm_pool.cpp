#include <cmath>
#include <vector>

#include "test/kernels/reference/image_activation.h"
#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

/// Max pooling behind a norm and ReLU as its definition reads, in double.
namespace dstrain::kernels::reference {
namespace {

/// Element `place` of the window of output element i, or -1 outside the image.
std::int64_t element_of(const PoolShape& s, std::int64_t i, int place) {
  const std::int64_t pixel = i / s.channels, row = pixel / s.out_width,
                     y = row % s.out_height * s.stride - s.before + place / s.kernel,
                     x = pixel % s.out_width * s.stride - s.before + place % s.kernel;
  if (y < 0 || y >= s.height || x < 0 || x >= s.width) return -1;
  return ((row / s.out_height * s.height + y) * s.width + x) * s.channels + i % s.channels;
}

std::int64_t outputs(const PoolShape& s) {
  return s.samples * s.out_height * s.out_width * s.channels;
}

/// dz of the samples that count.
template <typename Args>
std::vector<double> gradients(const Args& a) {
  const PoolShape& s = a.shape;
  const View grad(a.grad_y, a.dtype);
  std::vector<double> dz(static_cast<std::size_t>(s.samples * s.height * s.width * s.channels));
  const std::int64_t each = s.out_height * s.out_width * s.channels;
  for (std::int64_t i = 0; i < counted_samples(a.valid, s.samples) * each; ++i) {
    if (a.place[i] == kNoPlace) continue;
    dz[static_cast<std::size_t>(element_of(s, i, a.place[i]))] += grad.at(i);
  }
  return dz;
}

}  // namespace

void norm_max_pool(const NormMaxPool& a) {
  const PoolShape& s = a.shape;
  const View x(a.x, a.dtype), y(a.y, a.dtype);
  for (std::int64_t i = 0; i < outputs(s); ++i) {
    double best = 0;
    a.place[i] = kNoPlace;
    for (int place = 0; place < s.kernel * s.kernel; ++place) {
      const std::int64_t from = element_of(s, i, place), channel = i % s.channels;
      if (from < 0 || std::isnan(best)) continue;
      const double z = x.at(from) * channel_value(a.scale, channel, 1) +
                       channel_value(a.shift, channel, 0),
                   value = stored(z < 0 ? 0 : z, a.dtype);
      if (!(value > best) && !std::isnan(value)) continue;
      best = value;
      a.place[i] = static_cast<std::uint8_t>(place);
    }
    y.set(i, best);
  }
}

void norm_max_pool_sums(const NormMaxPoolSums& a) {
  const std::int64_t channels = a.shape.channels;
  const View x(a.x, a.dtype);
  const std::vector<double> dz = gradients(a);
  for (std::int64_t i = 0; i < norm_pool_partials(a.shape) * 2 * channels; ++i) a.partial[i] = 0;
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    double first = 0, second = 0;
    for (auto i = static_cast<std::size_t>(channel); i < dz.size();
         i += static_cast<std::size_t>(channels)) {
      first += dz[i];
      second += dz[i] * (x.at(static_cast<std::int64_t>(i)) - static_cast<double>(a.mean[channel]));
    }
    a.partial[channel] = static_cast<float>(first);
    a.partial[channels + channel] = static_cast<float>(second);
  }
}

void norm_max_pool_backward(const NormMaxPoolBackward& a) {
  const PoolShape& s = a.shape;
  const View x(a.x, a.dtype), grad_x(a.grad_x, a.dtype);
  const std::vector<double> dz = gradients(a);
  std::vector<double> sums(static_cast<std::size_t>(s.channels));
  const std::int64_t each = s.height * s.width * s.channels,
                     valid = counted_samples(a.valid, s.samples);
  for (std::int64_t i = 0; i < s.samples * each; ++i) {
    const std::int64_t channel = i % s.channels;
    double dx = dz[static_cast<std::size_t>(i)];
    sums[static_cast<std::size_t>(channel)] += dx;
    if (x) {
      const double off = x.at(i) - channel_value(a.mean, channel, 0);
      dx = channel_value(a.scale, channel, 1) * dx + off * channel_value(a.slope, channel, 0) +
           channel_value(a.offset, channel, 0);
    }
    grad_x.set(i, i / each < valid ? dx : 0);
  }
  if (a.grad_bias == nullptr) return;
  for (std::int64_t channel = 0; channel < s.channels; ++channel)
    add_to(a.grad_bias[channel], sums[static_cast<std::size_t>(channel)]);
}

}  // namespace dstrain::kernels::reference
