#include <cmath>

#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

/// An LSTM's step as its definition reads, in double.
namespace dstrain::kernels::reference {

void lstm_step(const LstmStep& a) {
  const View of_input(a.of_input, a.dtype), of_state(a.of_state, a.dtype), gates(a.gates, a.dtype),
      state(a.state, a.dtype);
  for (std::int64_t i = 0; i < a.rows * a.width; ++i) {
    const std::int64_t row = i / a.width, column = i % a.width, first = row * 4 * a.width + column;
    double gate[4];
    for (int k = 0; k < 4; ++k) {
      const double z = of_input.at(row * a.input_stride + k * a.width + column) +
                       of_state.at(first + k * a.width);
      gate[k] = k == 2 ? std::tanh(z) : 1 / (1 + std::exp(-z));
      gates.set(first + k * a.width, gate[k]);
    }
    const double next = gate[1] * static_cast<double>(a.cell[i]) + gate[0] * gate[2];
    a.next[i] = static_cast<float>(next);
    state.set(i, gate[3] * std::tanh(next));
  }
}

void lstm_step_backward(const LstmStepBackward& a) {
  const View gates(a.gates, a.dtype), grad_state(a.grad_state, a.dtype), grad_z(a.grad_z, a.dtype);
  for (std::int64_t i = 0; i < a.rows * a.width; ++i) {
    const std::int64_t first = i / a.width * 4 * a.width + i % a.width;
    double gate[4];
    for (int k = 0; k < 4; ++k) gate[k] = gates.at(first + k * a.width);
    const double bounded = std::tanh(static_cast<double>(a.next[i])),
                 of_state = grad_state ? grad_state.at(i) : 0,
                 of_next = (a.grad_next == nullptr ? 0 : static_cast<double>(a.grad_next[i])) +
                           of_state * gate[3] * (1 - bounded * bounded);
    const double grad[4] = {of_next * gate[2], of_next * static_cast<double>(a.cell[i]),
                            of_next * gate[0], of_state * bounded};
    for (int k = 0; k < 4; ++k) {
      const double slope = k == 2 ? 1 - gate[k] * gate[k] : gate[k] * (1 - gate[k]);
      grad_z.set(first + k * a.width, grad[k] * slope);
    }
    a.grad_cell[i] = static_cast<float>(of_next * gate[1]);
  }
}

}  // namespace dstrain::kernels::reference
