#include "engine/kernels/device.cuh"
#include "engine/kernels/recurrent/kernels.h"

/// A thread has one number of the state: steps are short, and a launch takes longer than its reads.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 128;

__device__ float gate_of(float z) { return 1.0f / (1.0f + expf(-z)); }

template <typename T>
__global__ void __launch_bounds__(kThreads) lstm_step_kernel(const LstmStep a) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= a.rows * a.width) return;
  const std::int64_t row = index / a.width, column = index % a.width,
                     first = row * 4 * a.width + column;
  const T* of_input = static_cast<const T*>(a.of_input) + row * a.input_stride + column;
  const T* of_state = static_cast<const T*>(a.of_state) + first;
  float z[4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    z[k] = to_float(of_input[k * a.width]) + to_float(of_state[k * a.width]);
  const float gate[4] = {gate_of(z[0]), gate_of(z[1]), tanhf(z[2]), gate_of(z[3])};
  const float next = gate[1] * a.cell[index] + gate[0] * gate[2];
  T* gates = static_cast<T*>(a.gates) + first;
#pragma unroll
  for (int k = 0; k < 4; ++k) gates[k * a.width] = from_float<T>(gate[k]);
  a.next[index] = next;
  static_cast<T*>(a.state)[index] = from_float<T>(gate[3] * tanhf(next));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) lstm_step_backward_kernel(const LstmStepBackward a) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= a.rows * a.width) return;
  const std::int64_t first = index / a.width * 4 * a.width + index % a.width;
  const T* gates = static_cast<const T*>(a.gates) + first;
  float gate[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) gate[k] = to_float(gates[k * a.width]);
  const float bounded = tanhf(a.next[index]);
  const float grad_state =
      a.grad_state == nullptr ? 0.0f : to_float(static_cast<const T*>(a.grad_state)[index]);
  const float grad_next = (a.grad_next == nullptr ? 0.0f : a.grad_next[index]) +
                          grad_state * gate[3] * (1.0f - bounded * bounded);
  const float grad[4] = {grad_next * gate[2] * (1.0f - gate[0]) * gate[0],
                         grad_next * a.cell[index] * (1.0f - gate[1]) * gate[1],
                         grad_next * gate[0] * (1.0f - gate[2] * gate[2]),
                         grad_state * bounded * (1.0f - gate[3]) * gate[3]};
  T* grad_z = static_cast<T*>(a.grad_z) + first;
#pragma unroll
  for (int k = 0; k < 4; ++k) grad_z[k * a.width] = from_float<T>(grad[k]);
  a.grad_cell[index] = grad_next * gate[1];
}

}  // namespace

void lstm_step(const LstmStep& args, cudaStream_t stream) {
  if (args.rows * args.width == 0) return;
  with_type(args.dtype, [&](auto zero) {
    lstm_step_kernel<decltype(zero)>
        <<<blocks_for(args.rows * args.width, kThreads), kThreads, 0, stream>>>(args);
  });
  check_launch("lstm_step");
}

void lstm_step_backward(const LstmStepBackward& args, cudaStream_t stream) {
  if (args.rows * args.width == 0) return;
  with_type(args.dtype, [&](auto zero) {
    lstm_step_backward_kernel<decltype(zero)>
        <<<blocks_for(args.rows * args.width, kThreads), kThreads, 0, stream>>>(args);
  });
  check_launch("lstm_step_backward");
}

}  // namespace dstrain::kernels::cuda
