#include <algorithm>

#include "engine/kernels/device.cuh"
#include "engine/kernels/excite/kernels.h"

/// Gates from means, and their gradients: a block has one sample, whose numbers lie in shared
/// memory; weights come from the L2 cache. The sums of the parameters' gradients over the samples
/// are a kernel of their own.
namespace dstrain::kernels::cuda {
namespace {

using activation_math::with_activation;

template <typename T>
inline constexpr bool kExact = std::is_same_v<T, float>;

constexpr int kWarps = kExciteThreads / kWarp;

template <bool kExactSigmoid>
__device__ float opened(GateRule rule, float z) {
  if (rule == GateRule::sigmoid) return activation_math::sigmoid<kExactSigmoid>(z);
  return activation_math::clamped(z + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f);
}
/// The derivative, from the gate.
__device__ float opening_slope(GateRule rule, float gate) {
  if (rule == GateRule::sigmoid) return gate * (1.0f - gate);
  return gate > 0.0f && gate < 1.0f ? 1.0f / 6.0f : 0.0f;
}

/// The smallest power of two that is not below `count`, of a warp's lanes.
inline int lanes_for(std::int64_t count) {
  int lanes = 1;
  while (lanes < kWarp && lanes < count) lanes *= 2;
  return lanes;
}

/// `lanes` lanes of a warp, a power of two, share a channel's sum over the squeezed channels.
template <typename T>
__global__ void __launch_bounds__(kExciteThreads) excite_kernel(const Excite a, const int lanes) {
  extern __shared__ float shared[];
  float* mean = shared;
  float* active = shared + a.channels;
  const auto channels = static_cast<int>(a.channels), squeezed = static_cast<int>(a.squeezed);
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp, warp = thread / kWarp;
  const std::int64_t sample = blockIdx.x;
  const T* means = static_cast<const T*>(a.mean) + sample * channels;
  for (int c = thread; c < channels; c += kExciteThreads) mean[c] = to_float(means[c]);
  __syncthreads();

  for (int r = warp; r < squeezed; r += kWarps) {
    const T* row = static_cast<const T*>(a.reduce) + static_cast<std::int64_t>(r) * channels;
    float sum = 0;
#pragma unroll 8
    for (int c = lane; c < channels; c += kWarp) sum += to_float(row[c]) * mean[c];
    sum = warp_sum(sum) + to_float(static_cast<const T*>(a.reduce_bias)[r]);
    if (lane == 0) {
      a.hidden[sample * squeezed + r] = sum;
      with_activation<kExact<T>>(
          a.activation, [&](const auto& activation) { active[r] = activation.value(sum); });
    }
  }
  __syncthreads();

  const int part = thread % lanes, group = thread / lanes, groups = kExciteThreads / lanes;
  const T* expand = static_cast<const T*>(a.expand);
  // The lanes of a warp stay together, also behind the last channel.
#pragma unroll 4
  for (int first = 0; first < channels; first += groups) {
    const int c = first + group;
    float sum = 0;
    if (c < channels) {
      for (int r = part; r < squeezed; r += lanes)
        sum += to_float(expand[static_cast<std::int64_t>(c) * squeezed + r]) * active[r];
    }
    for (int offset = lanes / 2; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (part == 0 && c < channels) {
      const float z = sum + to_float(static_cast<const T*>(a.expand_bias)[c]);
      a.gate[sample * channels + c] = opened<kExact<T>>(a.rule, z);
    }
  }
}

constexpr int kBackwardGroups = 32;  ///< threads at most that share a sum over the channels

template <typename T>
__global__ void __launch_bounds__(kExciteThreads)
    excite_backward_kernel(const ExciteBackward a, const int groups) {
  extern __shared__ float shared[];
  float* grad_z = shared;
  float* grad_hidden = grad_z + a.channels;
  float* partial = grad_hidden + a.squeezed;
  const auto channels = static_cast<int>(a.channels), squeezed = static_cast<int>(a.squeezed);
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int64_t sample = blockIdx.x;
  for (int c = thread; c < channels; c += kExciteThreads) {
    const std::int64_t at = sample * channels + c;
    const float grad = a.grad_gate[at] * opening_slope(a.rule, a.gate[at]);
    grad_z[c] = grad;
    a.grad_z[at] = grad;
  }
  __syncthreads();

  // Thread g * squeezed + r has every groups-th channel, so that neighbours read neighbours.
  if (thread < groups * squeezed) {
    const int r = thread % squeezed;
    const T* expand = static_cast<const T*>(a.expand) + r;
    float sum = 0;
#pragma unroll 8
    for (int c = thread / squeezed; c < channels; c += groups)
      sum += to_float(expand[static_cast<std::int64_t>(c) * squeezed]) * grad_z[c];
    partial[thread] = sum;
  }
  __syncthreads();
  if (thread < squeezed) {
    float sum = 0;
    for (int g = 0; g < groups; ++g) sum += partial[g * squeezed + thread];
    const std::int64_t at = sample * squeezed + thread;
    const float hidden = a.hidden[at];
    with_activation<kExact<T>>(a.activation, [&](const auto& activation) {
      grad_hidden[thread] = activation.through(hidden, sum);
    });
    a.grad_hidden[at] = grad_hidden[thread];
  }
  __syncthreads();

  const T* reduce = static_cast<const T*>(a.reduce);
  for (int c = thread; c < channels; c += kExciteThreads) {
    float sum = 0;
#pragma unroll 8
    for (int r = 0; r < squeezed; ++r)
      sum += to_float(reduce[static_cast<std::int64_t>(r) * channels + c]) * grad_hidden[r];
    a.grad_mean[sample * channels + c] = sum;
  }
}

constexpr int kParameterRows = 8;   ///< squeezed channels of a block
constexpr int kParameterParts = 4;  ///< threads that share the samples

/// A thread has one channel and one squeezed channel.
template <typename T>
__global__ void __launch_bounds__(kWarp* kParameterRows* kParameterParts)
    excite_parameters_kernel(const ExciteParameters a) {
  __shared__ float sums[4][kParameterParts][kParameterRows][kWarp];
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x,
                     r = static_cast<std::int64_t>(blockIdx.y) * kParameterRows + threadIdx.y;
  float total[4] = {};  // of reduce, its bias, expand and its bias
  if (c < a.channels && r < a.squeezed) {
    with_activation<kExact<T>>(a.activation, [&](const auto& activation) {
#pragma unroll 4
      for (std::int64_t s = threadIdx.z; s < a.samples; s += kParameterParts) {
        const float grad_z = a.grad_z[s * a.channels + c],
                    grad_hidden = a.grad_hidden[s * a.squeezed + r];
        total[0] += grad_hidden * to_float(static_cast<const T*>(a.mean)[s * a.channels + c]);
        total[1] += grad_hidden;
        total[2] += grad_z * activation.value(a.hidden[s * a.squeezed + r]);
        total[3] += grad_z;
      }
    });
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) sums[k][threadIdx.z][threadIdx.y][threadIdx.x] = total[k];
  __syncthreads();
  if (threadIdx.z != 0 || c >= a.channels || r >= a.squeezed) return;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    for (int part = 1; part < kParameterParts; ++part)
      total[k] += sums[k][part][threadIdx.y][threadIdx.x];
  }
  if (a.grad_reduce != nullptr) a.grad_reduce[r * a.channels + c] += total[0];
  if (a.grad_reduce_bias != nullptr && c == 0) a.grad_reduce_bias[r] += total[1];
  if (a.grad_expand != nullptr) a.grad_expand[c * a.squeezed + r] += total[2];
  if (a.grad_expand_bias != nullptr && r == 0) a.grad_expand_bias[c] += total[3];
}

void check_excite(std::int64_t channels, std::int64_t squeezed) {
  if (excite_fits(channels, squeezed)) return;
  throw Error(ErrorKind::internal, "excitation of " + std::to_string(channels) + " channels by " +
                                       std::to_string(squeezed) + " has no kernel");
}

}  // namespace

void excite(const Excite& args, cudaStream_t stream) {
  check_excite(args.channels, args.squeezed);
  if (args.samples == 0) return;
  const auto bytes = sizeof(float) * static_cast<std::size_t>(args.channels + args.squeezed);
  with_type(args.dtype, [&](auto zero) {
    excite_kernel<decltype(zero)>
        <<<static_cast<unsigned>(args.samples), kExciteThreads, bytes, stream>>>(
            args, lanes_for(args.squeezed));
  });
  check_launch("excite");
}

void excite_backward(const ExciteBackward& args, cudaStream_t stream) {
  check_excite(args.channels, args.squeezed);
  if (args.samples == 0) return;
  const auto groups =
      static_cast<int>(std::min<std::int64_t>(kBackwardGroups, kExciteThreads / args.squeezed));
  const auto bytes = sizeof(float) * static_cast<std::size_t>(args.channels + args.squeezed +
                                                              groups * args.squeezed);
  with_type(args.dtype, [&](auto zero) {
    excite_backward_kernel<decltype(zero)>
        <<<static_cast<unsigned>(args.samples), kExciteThreads, bytes, stream>>>(args, groups);
  });
  check_launch("excite_backward");
}

void excite_parameters(const ExciteParameters& args, cudaStream_t stream) {
  if (args.samples == 0 || args.channels == 0 || args.squeezed == 0) return;
  const dim3 grid(blocks_for(args.channels, kWarp), blocks_for(args.squeezed, kParameterRows)),
      block(kWarp, kParameterRows, kParameterParts);
  with_type(args.dtype, [&](auto zero) {
    excite_parameters_kernel<decltype(zero)><<<grid, block, 0, stream>>>(args);
  });
  check_launch("excite_parameters");
}

}  // namespace dstrain::kernels::cuda
