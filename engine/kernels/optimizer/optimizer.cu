#include <algorithm>
#include <type_traits>
#include <variant>

#include "engine/kernels/device.cuh"
#include "engine/kernels/gradient_format.h"
#include "engine/kernels/optimizer/control.h"
#include "engine/kernels/optimizer/kernels.h"
#include "engine/kernels/optimizer/optimizer_update.h"
#include "engine/kernels/optimizer/split_weight.h"
#include "engine/kernels/optimizer/stochastic_rounding.h"

namespace dstrain::kernels::cuda {
namespace {

using namespace dstrain::optimizer;

constexpr int kThreads = 256;
constexpr int kWide = 4;  // fp32 elements in 16 bytes
constexpr std::int64_t kMaxBlocks = 132 * 16;

bool aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

/// T is the type of x.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads) sum_squares_kernel(const AddSquares a) {
  __shared__ float shared[kWarp];
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads, packs = a.count / V;
  float sum = 0;
#pragma unroll 4
  for (std::int64_t i = start; i < packs; i += step) {
    float x[V];
    load<T, V>(a.x, i).unpack(x);
#pragma unroll
    for (int k = 0; k < V; ++k) sum += x[k] * x[k];
  }
  const std::int64_t tail = packs * V + start;
  if (tail < a.count) {
    float x[1];
    load<T, 1>(a.x, tail).unpack(x);
    sum += x[0] * x[0];
  }
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
    a.control[kCorrection1] = bias_correction(a.beta1, a.control[kAppliedSteps]);
    a.control[kCorrection2] = bias_correction(a.beta2, a.control[kAppliedSteps]);
  } else {
    a.control[kSkippedSteps] += 1;
  }
  adapt_loss_scale(a.control, finite, a.loss_scaling);
}

/// How states lie in memory.
enum class Form { exact, split, rounded };

/// The states of N elements in a row in fp32.
template <int N>
struct ExactStates {
  __device__ ExactStates(std::uint64_t, std::uint64_t, std::int64_t) {}
  __device__ static void read(const void* base, std::int64_t i, float (&out)[N]) {
    load<float, N>(base, i).unpack(out);
  }
  __device__ static void write(void* base, std::int64_t i, const float (&in)[N], RoundedState) {
    store(base, i, Pack<float, N>::of(in));
  }
};

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

/// The weights of N elements in a row, in halves.
template <int N>
__device__ void read_split(const OptimizerUpdate& a, std::int64_t i, float (&out)[N]) {
  const auto upper = load<std::uint16_t, N>(a.compute, i),
             lower = load<std::uint16_t, N>(a.parameters, i);
#pragma unroll
  for (int k = 0; k < N; ++k) out[k] = SplitWeight{upper.value[k], lower.value[k]}.join();
}
template <int N>
__device__ void write_split(const OptimizerUpdate& a, std::int64_t i, const float (&in)[N]) {
  Pack<std::uint16_t, N> upper, lower;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const SplitWeight weight = SplitWeight::of(in[k]);
    upper.value[k] = weight.upper;
    lower.value[k] = weight.lower;
  }
  store(a.compute, i, upper);
  store(a.parameters, i, lower);
}

/// T is the type of the copy, G that of the gradient.
template <class Rule, Form kForm, typename T, typename G, int V>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const OptimizerUpdate a, const Rule rule, const std::uint64_t key) {
  if (a.control[kSkip] != 0) return;
  const typename Rule::Element element = rule.element(a.control);
  const auto step = static_cast<std::uint64_t>(a.control[kAppliedSteps]);
  constexpr int kMoments = Rule::kMoments, kPlaces = kMoments > 0 ? kMoments : 1;
  constexpr bool kRounded = kForm == Form::rounded;

  const auto update = [&]<int N>(std::integral_constant<int, N>, std::int64_t i) {
    const std::conditional_t<kRounded, RoundedStates<N>, ExactStates<N>> states{
        key, step, a.first_element + i * N};
    float gradient[N], parameter[N], copy[N], moments[kPlaces][N];
    load<G, N>(a.gradient, i).unpack(gradient);
    if constexpr (kForm == Form::split) {
      read_split(a, i, parameter);
    } else {
      states.read(a.parameters, i, parameter);
    }
#pragma unroll
    for (int m = 0; m < kMoments; ++m) states.read(a.moments[m], i, moments[m]);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float own[kPlaces];
#pragma unroll
      for (int m = 0; m < kMoments; ++m) own[m] = moments[m][k];
      copy[k] = element.template update<kRounded>(gradient[k], parameter[k], own);
#pragma unroll
      for (int m = 0; m < kMoments; ++m) moments[m][k] = own[m];
    }
    if constexpr (kForm == Form::split) {
      write_split(a, i, parameter);
    } else {
      states.write(a.parameters, i, parameter, RoundedState::parameter);
    }
#pragma unroll
    for (int m = 0; m < kMoments; ++m) states.write(a.moments[m], i, moments[m], rounded_moment(m));
    if constexpr (kForm == Form::exact || Rule::kDirection) {
      if (a.compute != nullptr) store(a.compute, i, Pack<T, N>::of(copy));
    }
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

template <class Rule, Form kForm, typename T, typename G>
void launch_update(const OptimizerUpdate& args, const Rule& rule, cudaStream_t stream) {
  constexpr bool kRounded = kForm == Form::rounded;
  constexpr int kVector = kRounded ? kPack : kWide;
  bool wide = aligned(args.parameters, kForm == Form::split ? 8 : 16) &&
              aligned(args.gradient, kVector * sizeof(G)) &&
              aligned(args.compute, kVector * sizeof(T)) &&
              (!kRounded || args.first_element % kPack == 0);
  for (int m = 0; m < Rule::kMoments; ++m) wide = wide && aligned(args.moments[m], 16);
  const std::uint64_t key = random_key(args.seed, RandomStream::rounding);
  if (wide) {
    update_kernel<Rule, kForm, T, G, kVector>
        <<<flat_blocks(args.count, kVector), kThreads, 0, stream>>>(args, rule, key);
  } else {
    update_kernel<Rule, kForm, T, G, 1>
        <<<flat_blocks(args.count, 1), kThreads, 0, stream>>>(args, rule, key);
  }
  check_launch("optimizer");
}

template <typename T>
unsigned launch_squares(const AddSquares& args, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  const unsigned blocks =
      std::min<unsigned>(flat_blocks(args.count, kWide), static_cast<unsigned>(kSquarePartials));
  const bool wide = aligned(args.x, V * sizeof(T));
  const auto kernel = wide ? sum_squares_kernel<T, V> : sum_squares_kernel<T, 1>;
  kernel<<<blocks, kThreads, 0, stream>>>(args);
  check_launch("sum_squares");
  return blocks;
}

}  // namespace

void add_squares(const AddSquares& args, cudaStream_t stream) {
  if (args.count == 0) return;
  unsigned blocks = 0;
  with_gradient(args.type, [&]<DType kType>(GradientFormat<kType>) {
    blocks = launch_squares<GradientElement<kType>>(args, stream);
  });
  add_squares_kernel<<<1, kThreads, 0, stream>>>(args, static_cast<int>(blocks));
  check_launch("add_squares");
}

void finish_gradients(const FinishGradients& args, cudaStream_t stream) {
  finish_gradients_kernel<<<1, 1, 0, stream>>>(args);
  check_launch("finish_gradients");
}

void update(const OptimizerUpdate& args, cudaStream_t stream) {
  if (args.count == 0) return;
  std::visit(
      [&](const auto& rule) {
        using Rule = std::decay_t<decltype(rule)>;
        with_gradient(args.gradient_type, [&]<DType kType>(GradientFormat<kType>) {
          using G = GradientElement<kType>;
          using T = __nv_bfloat16;
          if (args.states == DType::bf16)
            return launch_update<Rule, Form::rounded, T, G>(args, rule, stream);
          if constexpr (!Rule::kDirection) {
            if (args.split) return launch_update<Rule, Form::split, T, G>(args, rule, stream);
          }
          with_type(args.compute_type, [&](auto zero) {
            // A gradient in 16 bits is one of a computation in them.
            if constexpr (std::is_same_v<G, float> || std::is_same_v<G, decltype(zero)>)
              launch_update<Rule, Form::exact, decltype(zero), G>(args, rule, stream);
          });
        });
      },
      args.rule);
}

}  // namespace dstrain::kernels::cuda
