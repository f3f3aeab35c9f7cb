#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

namespace dstrain::kernels::reference {

void bias_relu_backward(const BiasReluBackward& a) {
  const View y(a.y, a.dtype), grad_y(a.grad_y, a.dtype), grad_z(a.grad_z, a.dtype);
  for (std::int64_t channel = 0; channel < a.channels; ++channel) {
    double sum = 0;
    for (std::int64_t row = 0; row < a.rows; ++row) {
      const std::int64_t i = row * a.channels + channel;
      const double grad = y.at(i) <= 0 ? 0 : grad_y.at(i);
      grad_z.set(i, grad);
      sum += grad;
    }
    if (a.grad_bias != nullptr) add_to(a.grad_bias[channel], sum);
  }
}

}  // namespace dstrain::kernels::reference
