#include <algorithm>

#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/activation/swiglu.cuh"
#include "engine/kernels/device.cuh"

/// The gated activation: a thread has one pack of a row's gate and the pack of `up` beside it.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kMaxRows = 65535;  // of a grid

template <typename T, int V, GateActivation kActivation>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(const Swiglu a) {
  const std::int64_t packs = a.cols / V;
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pack >= packs) return;
  for (std::int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    float gate[V], up[V];
    load<T, V>(a.gate_up, row * 2 * packs + pack).unpack(gate);
    load<T, V>(a.gate_up, (row * 2 + 1) * packs + pack).unpack(up);
#pragma unroll
    for (int i = 0; i < V; ++i) gate[i] = activated<T, kActivation>(gate[i]).y * up[i];
    store(a.h, row * packs + pack, Pack<T, V>::of(gate));
  }
}

template <typename T, int V, GateActivation kActivation>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(const SwigluBackward a) {
  const std::int64_t packs = a.cols / V;
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pack >= packs) return;
  for (std::int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const std::int64_t at_gate = row * 2 * packs + pack, at_up = at_gate + packs;
    float gate[V], up[V], grad[V], h[V];
    load<T, V>(a.gate_up, at_gate).unpack(gate);
    load<T, V>(a.gate_up, at_up).unpack(up);
    load<T, V>(a.grad_h, row * packs + pack).unpack(grad);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const GatedGradient made = gated_gradient<T, kActivation>(gate[i], up[i], grad[i]);
      gate[i] = made.gate;
      up[i] = made.up;
      h[i] = made.h;
    }
    store(a.grad_gate_up, at_gate, Pack<T, V>::of(gate));
    store(a.grad_gate_up, at_up, Pack<T, V>::of(up));
    if (a.h != nullptr) store(a.h, row * packs + pack, Pack<T, V>::of(h));
  }
}

/// Packs where rows of both halves are aligned, else single elements.
template <typename Args, typename Launch>
void launch(const Args& args, const Launch& kernel) {
  if (args.rows == 0 || args.cols == 0) return;
  const bool packed = args.cols % kPack == 0;
  const dim3 grid(blocks_for(args.cols / (packed ? kPack : 1), kThreads),
                  static_cast<unsigned>(std::min(args.rows, kMaxRows)));
  with_type(args.dtype, [&](auto zero) {
    with_gate(args.gate, [&](auto gate) { kernel(zero, gate, grid, packed); });
  });
}

}  // namespace

void swiglu(const Swiglu& args, cudaStream_t stream) {
  if (args.partial != nullptr) return swiglu_measured(args, stream);
  launch(args, [&](auto zero, auto gate, dim3 grid, bool packed) {
    using T = decltype(zero);
    constexpr GateActivation kActivation = decltype(gate)::value;
    if (packed) {
      swiglu_kernel<T, kPack, kActivation><<<grid, kThreads, 0, stream>>>(args);
    } else {
      swiglu_kernel<T, 1, kActivation><<<grid, kThreads, 0, stream>>>(args);
    }
  });
  check_launch("swiglu");
}

void swiglu_backward(const SwigluBackward& args, cudaStream_t stream) {
  launch(args, [&](auto zero, auto gate, dim3 grid, bool packed) {
    using T = decltype(zero);
    constexpr GateActivation kActivation = decltype(gate)::value;
    if (packed) {
      swiglu_backward_kernel<T, kPack, kActivation><<<grid, kThreads, 0, stream>>>(args);
    } else {
      swiglu_backward_kernel<T, 1, kActivation><<<grid, kThreads, 0, stream>>>(args);
    }
  });
  check_launch("swiglu_backward");
}

}  // namespace dstrain::kernels::cuda
