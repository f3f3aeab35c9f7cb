#include <algorithm>
#include <vector>

#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

/// Convolutions of images of three channels as their definition reads, in double.
namespace dstrain::kernels::reference {
namespace {

/// Calls body(row of the result, element of the window, value) for all that is inside the image.
template <typename Body>
void for_windows(const View& x, const DirectShape& s, const Body& body) {
  const std::int64_t pixels = std::int64_t{s.out_height} * s.out_width;
  const int taps = s.kernel * s.kernel;
  for (std::int64_t row = 0; row < s.samples * pixels; ++row) {
    const std::int64_t top = row % pixels / s.out_width * s.stride - s.before,
                       left = row % s.out_width * s.stride - s.before;
    for (int i = 0; i < kDirectChannels * taps; ++i) {
      const std::int64_t y = top + i % taps / s.kernel, column = left + i % s.kernel;
      if (y < 0 || y >= s.height || column < 0 || column >= s.width) continue;
      body(row, i,
           x.at(row / pixels * s.sample_stride + y * s.row_stride + column * s.column_stride +
                i / taps * s.channel_stride));
    }
  }
}

}  // namespace

void direct_conv(const DirectConv& a) {
  const View x(a.x, a.dtype), weight(a.weight, a.dtype), bias(a.bias, a.dtype), y(a.y, a.dtype);
  const int window = kDirectChannels * a.shape.kernel * a.shape.kernel;
  std::vector<double> sums(static_cast<std::size_t>(a.shape.samples * a.shape.out_height *
                                                    a.shape.out_width * a.shape.out));
  for_windows(x, a.shape, [&](std::int64_t row, int i, double value) {
    for (std::int64_t o = 0; o < a.shape.out; ++o)
      sums[static_cast<std::size_t>(row * a.shape.out + o)] += value * weight.at(o * window + i);
  });
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const double sum = bias ? stored(sums[i], a.dtype) + bias.at(at % a.shape.out) : sums[i];
    y.set(at, a.relu ? std::max(sum, 0.0) : sum);
  }
}

void direct_conv_backward(const DirectConvBackward& a) {
  const View x(a.x, a.dtype), grad(a.grad_y, a.dtype);
  const int window = kDirectChannels * a.shape.kernel * a.shape.kernel;
  std::vector<double> sums(static_cast<std::size_t>(a.shape.out * window));
  for_windows(x, a.shape, [&](std::int64_t row, int i, double value) {
    for (std::int64_t o = 0; o < a.shape.out; ++o)
      sums[static_cast<std::size_t>(o * window + i)] += value * grad.at(row * a.shape.out + o);
  });
  for (std::size_t i = 0; i < sums.size(); ++i) add_to(a.grad_weight[i], sums[i]);
}

}  // namespace dstrain::kernels::reference
