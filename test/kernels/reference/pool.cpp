#include <cmath>
#include <vector>

#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

/// Max pooling as its definition reads.
namespace dstrain::kernels::reference {
namespace {

/// Calls body(output element, input element, place) for each element of each window.
template <typename Body>
void for_windows(const PoolShape& s, const Body& body) {
  for (std::int64_t i = 0; i < s.samples * s.out_height * s.out_width * s.channels; ++i) {
    const std::int64_t pixel = i / s.channels, row = pixel / s.out_width,
                       first_y = row % s.out_height * s.stride - s.before,
                       first_x = pixel % s.out_width * s.stride - s.before;
    for (int place = 0; place < s.kernel * s.kernel; ++place) {
      const std::int64_t y = first_y + place / s.kernel, x = first_x + place % s.kernel;
      if (y < 0 || y >= s.height || x < 0 || x >= s.width) continue;
      body(i, ((row / s.out_height * s.height + y) * s.width + x) * s.channels + i % s.channels,
           place);
    }
  }
}

}  // namespace

void max_pool(const MaxPool& a) {
  const View x(a.x, a.dtype), y(a.y, a.dtype);
  std::int64_t last = -1;
  for_windows(a.shape, [&](std::int64_t i, std::int64_t from, int place) {
    const double value = x.at(from);
    if (i == last && !(value > y.at(i)) && !std::isnan(value)) return;
    last = i;
    y.set(i, value);
    if (a.place != nullptr) a.place[i] = static_cast<std::uint8_t>(place);
  });
}

void max_pool_backward(const MaxPoolBackward& a) {
  const PoolShape& s = a.shape;
  const View grad_y(a.grad_y, a.dtype), grad_x(a.grad_x, a.dtype);
  std::vector<double> sum(static_cast<std::size_t>(s.samples * s.height * s.width * s.channels));
  for_windows(s, [&](std::int64_t i, std::int64_t from, int place) {
    if (a.place[i] == place) sum[static_cast<std::size_t>(from)] += grad_y.at(i);
  });
  for (std::size_t i = 0; i < sum.size(); ++i) grad_x.set(static_cast<std::int64_t>(i), sum[i]);
}

}  // namespace dstrain::kernels::reference
