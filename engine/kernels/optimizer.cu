#include <algorithm>

#include "engine/kernels/control.h"
#include "engine/kernels/device.cuh"
#include "engine/kernels/stochastic_rounding.h"

namespace dstrain::kernels::cuda {
namespace {

using namespace dstrain::optimizer;

constexpr int kThreads = 256;
constexpr int kWide = 4;  // fp32 elements in 16 bytes
constexpr std::int64_t kMaxBlocks = 132 * 16;

bool aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

template <int V>
__global__ void __launch_bounds__(kThreads) sum_squares_kernel(const AddSquares a) {
  __shared__ float shared[kWarp];
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads, packs = a.count / V;
  float sum = 0;
#pragma unroll 4
  for (std::int64_t i = start; i < packs; i += step) {
    float x[V];
    load<float, V>(a.x, i).unpack(x);
#pragma unroll
    for (int k = 0; k < V; ++k) sum += x[k] * x[k];
  }
  const std::int64_t tail = packs * V + start;
  if (tail < a.count) sum += a.x[tail] * a.x[tail];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) add_squares_kernel(const AddSquares a, int blocks) {
  __shared__ float shared[kWarp];
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kThreads) sum += a.partial[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *a.sum += a.factor * sum;
}

__global__ void finish_gradients_kernel(const FinishGradients a) {
  const float scale = a.control[kLossScale];
  const float norm = sqrtf(*a.sum) / scale;
  const bool finite = isfinite(norm);
  const float clip = a.clip_norm > 0 ? fminf(1.0f, a.clip_norm / (norm + 1e-6f)) : 1.0f;
  a.control[kGradientNorm] = norm;
  a.control[kGradientFactor] = finite ? clip / scale : 0.0f;
  a.control[kSkip] = finite ? 0.0f : 1.0f;
  if (finite) {
    a.control[kAppliedSteps] += 1;
    a.control[kGoodSteps] += 1;
    if (a.dynamic_loss_scale && a.control[kGoodSteps] >= static_cast<float>(a.growth_interval)) {
      a.control[kLossScale] = fminf(scale * 2, fmaxf(scale, kMaxLossScale));
      a.control[kGoodSteps] = 0;
    }
  } else {
    a.control[kSkippedSteps] += 1;
    a.control[kGoodSteps] = 0;
    if (a.dynamic_loss_scale) a.control[kLossScale] = fmaxf(scale / 2, fminf(scale, kMinLossScale));
  }
}

/// Constants of a step, once per block: powers need double, a thread's work does not.
struct AdamConstants {
  float factor, step_size, rsqrt_correction;
};

template <typename T, int V>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const AdamWStep a) {
  if (a.control[kSkip] != 0) return;
  __shared__ AdamConstants constants;
  if (threadIdx.x == 0) {
    const double t = a.control[kAppliedSteps];
    constants.factor = a.control[kGradientFactor];
    constants.step_size = static_cast<float>(a.lr / (1 - pow(a.beta1, t)));
    constants.rsqrt_correction = static_cast<float>(1 / sqrt(1 - pow(a.beta2, t)));
  }
  __syncthreads();
  const auto [factor, step_size, rsqrt_correction] = constants;
  const float beta2 = static_cast<float>(a.beta2), eps = static_cast<float>(a.eps);
  const float rest1 = static_cast<float>(1 - a.beta1), rest2 = static_cast<float>(1 - a.beta2);
  const float keep = static_cast<float>(1 - a.lr * a.weight_decay);

  const auto update = [&]<int N>(std::integral_constant<int, N>, std::int64_t i) {
    float gradient[N], master[N], average[N], square[N];
    load<float, N>(a.gradient, i).unpack(gradient);
    load<float, N>(a.master, i).unpack(master);
    load<float, N>(a.exp_avg, i).unpack(average);
    load<float, N>(a.exp_avg_sq, i).unpack(square);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float g = gradient[k] * factor;
      average[k] += rest1 * (g - average[k]);
      square[k] = beta2 * square[k] + rest2 * g * g;
      master[k] =
          master[k] * keep - step_size * average[k] / (sqrtf(square[k]) * rsqrt_correction + eps);
    }
    store(a.master, i, Pack<float, N>::of(master));
    store(a.exp_avg, i, Pack<float, N>::of(average));
    store(a.exp_avg_sq, i, Pack<float, N>::of(square));
    if (a.compute != nullptr) store(a.compute, i, Pack<T, N>::of(master));
  };
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                     packs = a.count / V;
  for (std::int64_t i = start; i < packs; i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    update(std::integral_constant<int, V>{}, i);
  }
  if (packs * V + start < a.count) update(std::integral_constant<int, 1>{}, packs * V + start);
}

template <typename T, int V>
__global__ void __launch_bounds__(kThreads) sgd_kernel(const SgdStep a) {
  if (a.control[kSkip] != 0) return;
  const float factor = a.control[kGradientFactor], lr = static_cast<float>(a.lr);
  const float momentum = static_cast<float>(a.momentum), decay = static_cast<float>(a.weight_decay);

  const auto update = [&]<int N>(std::integral_constant<int, N>, std::int64_t i) {
    float gradient[N], master[N], buffer[N];
    load<float, N>(a.gradient, i).unpack(gradient);
    load<float, N>(a.master, i).unpack(master);
    load<float, N>(a.momentum_buffer, i).unpack(buffer);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      buffer[k] = momentum * buffer[k] + (gradient[k] * factor + decay * master[k]);
      master[k] -= lr * buffer[k];
    }
    store(a.master, i, Pack<float, N>::of(master));
    store(a.momentum_buffer, i, Pack<float, N>::of(buffer));
    if (a.compute != nullptr) store(a.compute, i, Pack<T, N>::of(master));
  };
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                     packs = a.count / V;
  for (std::int64_t i = start; i < packs; i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    update(std::integral_constant<int, V>{}, i);
  }
  if (packs * V + start < a.count) update(std::integral_constant<int, 1>{}, packs * V + start);
}

/// The states of N elements in a row, bf16 in memory and float here.
template <int N>
struct RoundedStates {
  std::uint64_t key, step;
  std::int64_t element;  ///< position of the first in the whole

  __device__ static void read(const void* base, std::int64_t i, float (&out)[N]) {
    load<__nv_bfloat16, N>(base, i).unpack(out);
  }
  /// N is one, or RoundingBits::kTogether at a multiple of it.
  __device__ void write(void* base, std::int64_t i, const float (&in)[N],
                        RoundedState state) const {
    const RoundingBits bits = RoundingBits::at(key, step, element / RoundingBits::kTogether, state);
    Pack<std::uint16_t, N> pack;
    if constexpr (N == 1) {
      const int own = static_cast<int>(element % RoundingBits::kTogether);
#pragma unroll
      for (int k = 0; k < RoundingBits::kTogether; ++k) {  // constants keep the bits in registers
        if (k == own) pack.value[0] = round_stochastically(in[0], bits.of(k));
      }
    } else {
      static_assert(N == RoundingBits::kTogether);
#pragma unroll
      for (int k = 0; k < N; ++k) pack.value[k] = round_stochastically(in[k], bits.of(k));
    }
    store(base, i, pack);
  }
};

template <int V>
__global__ void __launch_bounds__(kThreads)
    adamw_bf16_kernel(const AdamWBf16Step a, const std::uint64_t key) {
  if (a.control[kSkip] != 0) return;
  __shared__ AdamConstants constants;
  const float t = a.control[kAppliedSteps];
  if (threadIdx.x == 0) {
    constants.factor = a.control[kGradientFactor];
    constants.step_size = static_cast<float>(a.lr / (1 - pow(a.beta1, static_cast<double>(t))));
    constants.rsqrt_correction =
        static_cast<float>(1 / sqrt(1 - pow(a.beta2, static_cast<double>(t))));
  }
  __syncthreads();
  const auto [factor, step_size, rsqrt_correction] = constants;
  const float beta2 = static_cast<float>(a.beta2), eps = static_cast<float>(a.eps);
  const float rest1 = static_cast<float>(1 - a.beta1), rest2 = static_cast<float>(1 - a.beta2);
  const float keep = static_cast<float>(1 - a.lr * a.weight_decay);

  const auto update = [&]<int N>(std::integral_constant<int, N>, std::int64_t i) {
    const RoundedStates<N> states{key, static_cast<std::uint64_t>(t), a.first_element + i * N};
    float gradient[N], parameter[N], average[N], square[N];
    load<float, N>(a.gradient, i).unpack(gradient);
    states.read(a.parameters, i, parameter);
    states.read(a.exp_avg, i, average);
    states.read(a.exp_avg_sq, i, square);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float g = gradient[k] * factor;
      average[k] += rest1 * (g - average[k]);
      square[k] = beta2 * square[k] + rest2 * g * g;
      // Exact root and quotient would make arithmetic the limit, for bits that rounding cuts off.
      const float root = square[k] > 0 ? square[k] * rsqrtf(square[k]) : 0.0f;
      parameter[k] =
          parameter[k] * keep - __fdividef(step_size * average[k], root * rsqrt_correction + eps);
    }
    states.write(a.parameters, i, parameter, RoundedState::parameter);
    states.write(a.exp_avg, i, average, RoundedState::first_moment);
    states.write(a.exp_avg_sq, i, square, RoundedState::second_moment);
  };
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                     packs = a.count / V;
  for (std::int64_t i = start; i < packs; i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    update(std::integral_constant<int, V>{}, i);
  }
  if (packs * V + start < a.count) update(std::integral_constant<int, 1>{}, packs * V + start);
}

template <int V>
__global__ void __launch_bounds__(kThreads)
    sgd_bf16_kernel(const SgdBf16Step a, const std::uint64_t key) {
  if (a.control[kSkip] != 0) return;
  const auto step = static_cast<std::uint64_t>(a.control[kAppliedSteps]);
  const float factor = a.control[kGradientFactor], lr = static_cast<float>(a.lr);
  const float momentum = static_cast<float>(a.momentum), decay = static_cast<float>(a.weight_decay);

  const auto update = [&]<int N>(std::integral_constant<int, N>, std::int64_t i) {
    const RoundedStates<N> states{key, step, a.first_element + i * N};
    float gradient[N], parameter[N], buffer[N];
    load<float, N>(a.gradient, i).unpack(gradient);
    states.read(a.parameters, i, parameter);
    states.read(a.momentum_buffer, i, buffer);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      buffer[k] = momentum * buffer[k] + (gradient[k] * factor + decay * parameter[k]);
      parameter[k] -= lr * buffer[k];
    }
    states.write(a.parameters, i, parameter, RoundedState::parameter);
    states.write(a.momentum_buffer, i, buffer, RoundedState::first_moment);
  };
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                     packs = a.count / V;
  for (std::int64_t i = start; i < packs; i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    update(std::integral_constant<int, V>{}, i);
  }
  if (packs * V + start < a.count) update(std::integral_constant<int, 1>{}, packs * V + start);
}

unsigned flat_blocks(std::int64_t count, int per_thread) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(
      blocks_for(count, static_cast<std::int64_t>(kThreads) * per_thread), 1, kMaxBlocks));
}

}  // namespace

void add_squares(const AddSquares& args, cudaStream_t stream) {
  if (args.count == 0) return;
  const bool wide = aligned(args.x, 16);
  const unsigned blocks =
      std::min<unsigned>(flat_blocks(args.count, kWide), static_cast<unsigned>(kSquarePartials));
  if (wide) {
    sum_squares_kernel<kWide><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    sum_squares_kernel<1><<<blocks, kThreads, 0, stream>>>(args);
  }
  check_launch("sum_squares");
  add_squares_kernel<<<1, kThreads, 0, stream>>>(args, static_cast<int>(blocks));
  check_launch("add_squares");
}

void finish_gradients(const FinishGradients& args, cudaStream_t stream) {
  finish_gradients_kernel<<<1, 1, 0, stream>>>(args);
  check_launch("finish_gradients");
}

void adamw(const AdamWStep& args, cudaStream_t stream) {
  if (args.count == 0) return;
  const bool wide = aligned(args.master, 16) && aligned(args.exp_avg, 16) &&
                    aligned(args.exp_avg_sq, 16) && aligned(args.gradient, 16);
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (wide && aligned(args.compute, kWide * sizeof(T))) {
      adamw_kernel<T, kWide><<<flat_blocks(args.count, kWide), kThreads, 0, stream>>>(args);
    } else {
      adamw_kernel<T, 1><<<flat_blocks(args.count, 1), kThreads, 0, stream>>>(args);
    }
  });
  check_launch("adamw");
}

void sgd(const SgdStep& args, cudaStream_t stream) {
  if (args.count == 0) return;
  const bool wide =
      aligned(args.master, 16) && aligned(args.momentum_buffer, 16) && aligned(args.gradient, 16);
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (wide && aligned(args.compute, kWide * sizeof(T))) {
      sgd_kernel<T, kWide><<<flat_blocks(args.count, kWide), kThreads, 0, stream>>>(args);
    } else {
      sgd_kernel<T, 1><<<flat_blocks(args.count, 1), kThreads, 0, stream>>>(args);
    }
  });
  check_launch("sgd");
}

void adamw_bf16(const AdamWBf16Step& args, cudaStream_t stream) {
  if (args.count == 0) return;
  const std::uint64_t key = random_key(args.seed, RandomStream::rounding);
  if (aligned(args.parameters, 16) && aligned(args.exp_avg, 16) && aligned(args.exp_avg_sq, 16) &&
      aligned(args.gradient, 16) && args.first_element % kPack == 0) {
    adamw_bf16_kernel<kPack><<<flat_blocks(args.count, kPack), kThreads, 0, stream>>>(args, key);
  } else {
    adamw_bf16_kernel<1><<<flat_blocks(args.count, 1), kThreads, 0, stream>>>(args, key);
  }
  check_launch("adamw_bf16");
}

void sgd_bf16(const SgdBf16Step& args, cudaStream_t stream) {
  if (args.count == 0) return;
  const std::uint64_t key = random_key(args.seed, RandomStream::rounding);
  if (aligned(args.parameters, 16) && aligned(args.momentum_buffer, 16) &&
      aligned(args.gradient, 16) && args.first_element % kPack == 0) {
    sgd_bf16_kernel<kPack><<<flat_blocks(args.count, kPack), kThreads, 0, stream>>>(args, key);
  } else {
    sgd_bf16_kernel<1><<<flat_blocks(args.count, 1), kThreads, 0, stream>>>(args, key);
  }
  check_launch("sgd_bf16");
}

}  // namespace dstrain::kernels::cuda
