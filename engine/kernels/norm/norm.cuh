#pragma once

#include <cuda_pipeline.h>

#include "engine/kernels/device.cuh"
#include "engine/kernels/gpu.h"
#include "engine/kernels/linear/kernels.h"
#include "engine/kernels/norm/kernels.h"

/// Layer norm and RMS norm: one kernel forward and one backward serve both, told apart by their
/// arguments. W warps share a row, N packs of it a lane; eight warps are a block.
namespace dstrain::kernels::cuda {

inline constexpr int kNormWarps = 8;
inline constexpr int kNormThreads = kNormWarps * kWarp;
inline constexpr std::int64_t kNormBlocks =
    264;  // of backward: two per SM of an H200; more would only make more partial sums
static_assert(kNormBlocks <= kAbsMaxPartials);

/// So few rows that forward takes as long as its accesses to memory, one after the other: all of a
/// block's warps share a row.
inline constexpr std::int64_t kFewNormRows = 32;

/// Layer norm subtracts the mean and adds a bias.
template <typename Args>
inline constexpr bool kCentered = requires(Args a) {
  a.mean;
};

/// By what the norm of an element is multiplied.
template <typename Args>
__device__ float factor_of(const Args& a, float weight) {
  if constexpr (kCentered<Args>) {
    return weight;
  } else {
    return a.less_one ? 1.0f + weight : weight;
  }
}

/// The W warps of a row, of which the block has `Rows`, add up K numbers of each lane in a fixed
/// order. Two calls in a row need two `shared`: a fast warp may already write the next numbers
/// while a slow one reads.
template <int W, int Rows, int K>
__device__ void row_sum(float (&x)[K], float (&shared)[W * Rows][K]) {
#pragma unroll
  for (int k = 0; k < K; ++k) x[k] = warp_sum(x[k]);
  if constexpr (W > 1) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, row = warp / W;
    if (threadIdx.x % kWarp == 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) shared[warp][k] = x[k];
    }
    if constexpr (Rows == 1) {
      __syncthreads();
    } else {
#pragma unroll
      for (int r = 0; r < Rows; ++r) {  // constants, since the block then occupies few barriers
        if (r == row) __barrier_sync_count(1 + r, W * kWarp);  // barrier 0 is __syncthreads'
      }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      x[k] = 0;
#pragma unroll
      for (int w = 0; w < W; ++w) x[k] += shared[row * W + w][k];
    }
  }
}

/// Rows of a block going forward: a row of several warps has one to itself.
template <int W>
inline constexpr int kForwardRows = W == 1 ? kNormWarps : 1;

/// Registers are held down to what keeps enough loads in flight.
template <typename T, int N, int W>
inline constexpr int kForwardBlocks = (sizeof(T) == 4 ? 512
                                       : N > 3        ? 768
                                                      : 1024) /
                                      (kForwardRows<W> * W * kWarp);

/// The row stays in registers, so that mean and variance take two passes over it at no traffic.
template <typename Args, typename T, int N, int W, bool kMeasure>
__global__ void __launch_bounds__(kForwardRows<W>* W* kWarp, kForwardBlocks<T, N, W>)
    add_norm_kernel(const Args a) {
  constexpr int kRowThreads = W * kWarp, kRows = kForwardRows<W>;
  __shared__ float sums[2][W * kRows][1];
  const int thread = static_cast<int>(threadIdx.x) % kRowThreads;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / kRowThreads;
  if (row >= a.rows) return;  // all warps of the row together
  const int packs = static_cast<int>(a.dim) / kPack;
  const std::int64_t first = row * packs;

  // With few packs there are registers to ask for all that is needed at once.
  constexpr bool kEarly = N <= 2;
  Pack<T> x[N], delta[N];
  [[maybe_unused]] Pack<T> weights[N], biases[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int pack = thread + n * kRowThreads;
    if (pack < packs) {
      x[n] = load<T, kPack>(a.x, first + pack);
      if (a.delta != nullptr) delta[n] = load<T, kPack>(a.delta, first + pack);
      if constexpr (kEarly) {
        weights[n] = load<T, kPack>(a.weight, pack);
        if constexpr (kCentered<Args>) biases[n] = load<T, kPack>(a.bias, pack);
      }
    }
  }

  float value[N][kPack];
  float total[1] = {0};
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int pack = thread + n * kRowThreads;
    if (pack < packs) {
      x[n].unpack(value[n]);
      if (a.delta != nullptr) {
        float added[kPack];
        delta[n].unpack(added);
#pragma unroll
        for (int i = 0; i < kPack; ++i) value[n][i] += added[i];
        const Pack<T> rounded = Pack<T>::of(value[n]);
        store(a.sum, first + pack, rounded);
        rounded.unpack(value[n]);  // statistics of what backward will read
      }
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        total[0] += kCentered<Args> ? value[n][i] : value[n][i] * value[n][i];
    }
  }
  row_sum<W, kRows>(total, sums[0]);
  [[maybe_unused]] float mean = 0;
  if constexpr (kCentered<Args>) {
    mean = total[0] / static_cast<float>(a.dim);
    total[0] = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (thread + n * kRowThreads < packs) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) total[0] += (value[n][i] - mean) * (value[n][i] - mean);
      }
    }
    row_sum<W, kRows>(total, sums[1]);
  }
  const float rstd = rsqrtf(total[0] / static_cast<float>(a.dim) + a.eps);

  [[maybe_unused]] float max = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int pack = thread + n * kRowThreads;
    if (pack < packs) {
      float weight[kPack];
      (kEarly ? weights[n] : load<T, kPack>(a.weight, pack)).unpack(weight);
      if constexpr (kCentered<Args>) {
        float bias[kPack];
        (kEarly ? biases[n] : load<T, kPack>(a.bias, pack)).unpack(bias);
#pragma unroll
        for (int i = 0; i < kPack; ++i)
          value[n][i] = (value[n][i] - mean) * rstd * weight[i] + bias[i];
      } else {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const float normed = value[n][i] * rstd;
          value[n][i] =
              (a.less_one ? normed : to_float(from_float<T>(normed))) * factor_of(a, weight[i]);
        }
      }
      store(a.y, first + pack, Pack<T>::of(value[n]));
      if constexpr (kMeasure) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) max = fmaxf(max, fabsf(value[n][i]));
      }
    }
  }
  if constexpr (kMeasure) {
    max = to_float(from_float<T>(warp_max(max)));  // rounding keeps the order
    if (thread % kWarp == 0) a.maxima[row * W + thread / kWarp] = max;
  }
  if (thread == 0) {
    if constexpr (kCentered<Args>) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

/// What backward reads of one row, copied to shared memory while the row before it is worked on: a
/// lane copies what it will read itself, so no lane waits for another. fp32 has room for one row
/// only.
template <typename T, int N>
struct NormStaging {
  static constexpr int kStages = sizeof(T) == 2 ? 2 : 1;
  static constexpr int kWords = static_cast<int>(sizeof(Pack<T>) / sizeof(uint4));
  static constexpr int kSources = 3;
  static constexpr std::size_t kBytes =
      sizeof(uint4) * kStages * kSources * N * kWords * kNormThreads;

  uint4* words;

  __device__ uint4* at(int stage, int source, int n, int word) const {
    return words + (((stage * kSources + source) * N + n) * kWords + word) * kNormThreads +
           threadIdx.x;
  }
  __device__ void fetch(int stage, int source, int n, const void* from, std::int64_t pack) const {
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      __pipeline_memcpy_async(at(stage, source, n, word),
                              static_cast<const uint4*>(from) + pack * kWords + word,
                              sizeof(uint4));
    }
  }
  __device__ void unpack(int stage, int source, int n, float (&out)[kPack]) const {
    Pack<T> pack;
#pragma unroll
    for (int word = 0; word < kWords; ++word)
      reinterpret_cast<uint4*>(&pack)[word] = *at(stage, source, n, word);
    pack.unpack(out);
  }
};

/// The same in registers, where a block has no room for staged rows.
template <typename T, int N>
struct NormHeld {
  static constexpr int kStages = 1;
  /// For the sums of columns, one kind after the other.
  static constexpr std::size_t kBytes = sizeof(float) * N * kPack * kNormThreads;

  Pack<T> packs[3][N];

  __device__ explicit NormHeld(uint4* /*shared*/) {}
  __device__ void fetch(int /*stage*/, int source, int n, const void* from, std::int64_t pack) {
    packs[source][n] = load<T, kPack>(from, pack);
  }
  __device__ void unpack(int /*stage*/, int source, int n, float (&out)[kPack]) const {
    packs[source][n].unpack(out);
  }
};

/// Each lane keeps the parameter gradients of its columns in registers over all its rows, with
/// kSumX also the sums of what it writes; the block adds its rows up in order and writes one row of
/// partial sums.
template <typename Args, typename T, int N, int W, bool kSumX, bool kStaged>
__global__ void __launch_bounds__(kNormThreads, sizeof(T) == 2 && kStaged ? 2 : 1)
    add_norm_backward_kernel(const Args a) {
  using Staging = std::conditional_t<kStaged, NormStaging<T, N>, NormHeld<T, N>>;
  constexpr int kRowThreads = W * kWarp, kRows = kNormWarps / W;
  constexpr int kTotals = kCentered<Args> ? 2 : 1;          // grad_weight, and grad_bias
  constexpr int kSums = kTotals + static_cast<int>(kSumX);  // of columns
  constexpr int kSumsAtOnce = kStaged ? kSums : 1;
  static_assert(sizeof(float) * kRows * kSumsAtOnce * N * kRowThreads * kPack <= Staging::kBytes);
  extern __shared__ uint4 shared[];
  __shared__ float sums[2][kNormWarps][kTotals];
  Staging staging{shared};
  const int thread = static_cast<int>(threadIdx.x) % kRowThreads,
            slot = static_cast<int>(threadIdx.x) / kRowThreads;
  const int dim = static_cast<int>(a.dim), packs = dim / kPack;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kRows;
  const bool add_gradients = a.grad_weight != nullptr;

  float gradient[kSums][N][kPack] = {};
  float max = 0;

  float mean = 0, rstd = 0, next_mean = 0, next_rstd = 0;
  const auto fetch = [&](std::int64_t row, int stage) {
    if (row < a.rows) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int pack = thread + n * kRowThreads;
        if (pack < packs) {
          staging.fetch(stage, 0, n, a.sum, row * packs + pack);
          staging.fetch(stage, 1, n, a.grad_y, row * packs + pack);
          if (a.grad_sum != nullptr) staging.fetch(stage, 2, n, a.grad_sum, row * packs + pack);
        }
      }
      if constexpr (kCentered<Args>) next_mean = a.mean[row];
      next_rstd = a.rstd[row];
    }
    __pipeline_commit();
  };

  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRows + slot;
  if constexpr (Staging::kStages == 2) fetch(row, 0);
  for (int turn = 0; row < a.rows; row += step, turn ^= 1) {
    const int stage = Staging::kStages == 2 ? turn : 0;
    if constexpr (Staging::kStages == 2) {
      mean = next_mean;
      rstd = next_rstd;
      fetch(row + step, stage ^ 1);
      __pipeline_wait_prior(1);
    } else {
      fetch(row, 0);
      mean = next_mean;
      rstd = next_rstd;
      __pipeline_wait_prior(0);
    }
    __syncwarp();  // the compiler may move reads over the wait, but not over this

    float total[kTotals] = {};  // of grad_y * weight * x_hat, and of grad_y * weight
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int pack = thread + n * kRowThreads;
      if (pack < packs) {
        float xs[kPack], gs[kPack], weight[kPack];
        staging.unpack(stage, 0, n, xs);
        staging.unpack(stage, 1, n, gs);
        load<T, kPack>(a.weight, pack).unpack(weight);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const float x_hat = (xs[i] - mean) * rstd;
          if (add_gradients) {
            gradient[0][n][i] += gs[i] * x_hat;
            if constexpr (kCentered<Args>) gradient[1][n][i] += gs[i];
          }
          total[0] += gs[i] * factor_of(a, weight[i]) * x_hat;
          if constexpr (kCentered<Args>) total[1] += gs[i] * weight[i];
        }
      }
    }
    row_sum<W, kRows>(total, sums[turn]);
    const float mean_grad_x = total[0] / static_cast<float>(dim);
    float mean_grad = 0;
    if constexpr (kCentered<Args>) mean_grad = total[1] / static_cast<float>(dim);

#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int pack = thread + n * kRowThreads;
      if (pack < packs) {
        float xs[kPack], gs[kPack], weight[kPack], out[kPack] = {};
        staging.unpack(stage, 0, n, xs);
        staging.unpack(stage, 1, n, gs);
        load<T, kPack>(a.weight, pack).unpack(weight);
        if (a.grad_sum != nullptr) staging.unpack(stage, 2, n, out);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const float x_hat = (xs[i] - mean) * rstd;
          out[i] += rstd * (gs[i] * factor_of(a, weight[i]) - mean_grad - x_hat * mean_grad_x);
        }
        const Pack<T> rounded = Pack<T>::of(out);
        store(a.grad_x, row * packs + pack, rounded);
        if constexpr (kSumX) {
          rounded.unpack(out);
#pragma unroll
          for (int i = 0; i < kPack; ++i) gradient[kTotals][n][i] += out[i];
        }
        if (a.maxima != nullptr) {
#pragma unroll
          for (int i = 0; i < kPack; ++i) max = fmaxf(max, fabsf(out[i]));
        }
      }
    }
  }
  if (a.maxima != nullptr) {
    __shared__ float max_of_warp[kWarp];
    max = to_float(from_float<T>(block_max(max, max_of_warp)));  // rounding keeps the order
    for (std::int64_t i = blockIdx.x; i < kAbsMaxPartials && threadIdx.x == 0; i += gridDim.x)
      a.maxima[i] = max;
  }
  if (!add_gradients) return;

  __pipeline_wait_prior(0);
  float* columns = reinterpret_cast<float*>(shared);  // [kRows, kSumsAtOnce, dim]
  float* partial = a.partial + static_cast<std::int64_t>(blockIdx.x) * kTotals * dim;
  const auto write_sums = [&](int first) {
    __syncthreads();  // no thread reads staged rows, or the sums before, any more
#pragma unroll
    for (int s = 0; s < kSumsAtOnce; ++s) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int pack = thread + n * kRowThreads;
        if (pack < packs)
          store(columns + (slot * kSumsAtOnce + s) * dim, pack,
                Pack<float>::of(gradient[first + s][n]));
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kSumsAtOnce * dim; i += kNormThreads) {
      float sum = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) sum += columns[r * kSumsAtOnce * dim + i];
      const int place = first * dim + i;
      if constexpr (kSumX) {
        if (place >= kTotals * dim) {
          a.grad_x_sums[static_cast<std::int64_t>(blockIdx.x) * dim + place - kTotals * dim] = sum;
          continue;
        }
      }
      partial[place] = sum;
    }
  };
  write_sums(0);
  if constexpr (kSumsAtOnce < kSums) {
#pragma unroll
    for (int first = 1; first < kSums; ++first) write_sums(first);
  }
}

/// Calls `body` with packs per lane and warps per row as constants. The least number of warps that
/// leaves four packs or fewer to a lane: sums within a warp are cheaper than between warps.
template <typename Body>
void with_row_shape(const char* norm, std::int64_t rows, std::int64_t dim, const Body& body) {
  using std::integral_constant;
  require_taken(kNormDims, dim, norm);
  const std::int64_t packs = dim / kPack;
  const auto with_packs = [&](auto warps) {
    constexpr int kLanes = decltype(warps)::value * kWarp;
    if (packs <= 3 * kLanes) return body(integral_constant<int, 3>{}, warps);
    body(integral_constant<int, 4>{}, warps);
  };
  if (packs <= kWarp) return body(integral_constant<int, 1>{}, integral_constant<int, 1>{});
  if (rows <= kFewNormRows) {
    const integral_constant<int, kNormWarps> warps;
    if (packs <= kNormThreads) return body(integral_constant<int, 1>{}, warps);
    if (packs <= 2 * kNormThreads) return body(integral_constant<int, 2>{}, warps);
  }
  if (packs <= 2 * kWarp) return body(integral_constant<int, 2>{}, integral_constant<int, 1>{});
  if (packs <= 4 * kWarp) return with_packs(integral_constant<int, 1>{});
  if (packs <= 8 * kWarp) return with_packs(integral_constant<int, 2>{});
  if (packs <= 16 * kWarp) return with_packs(integral_constant<int, 4>{});
  with_packs(integral_constant<int, 8>{});
}

/// The same for backward, whose sums take registers: three packs or fewer up to kMaxNormSumsDim.
template <typename Body>
void with_backward_shape(const char* norm, std::int64_t dim, const Body& body) {
  using std::integral_constant;
  require_taken(kNormDims, dim, norm);
  const std::int64_t packs = dim / kPack;
  const auto with_packs = [&](auto warps) {
    constexpr int kLanes = decltype(warps)::value * kWarp;
    if (packs <= 2 * kLanes) return body(integral_constant<int, 2>{}, warps);
    body(integral_constant<int, 3>{}, warps);
  };
  if (packs <= kWarp) return body(integral_constant<int, 1>{}, integral_constant<int, 1>{});
  if (packs <= 3 * kWarp) return with_packs(integral_constant<int, 1>{});
  if (packs <= 6 * kWarp) return with_packs(integral_constant<int, 2>{});
  if (packs <= 12 * kWarp) return with_packs(integral_constant<int, 4>{});
  if (dim <= kMaxNormSumsDim) return with_packs(integral_constant<int, 8>{});
  body(integral_constant<int, 4>{}, integral_constant<int, 8>{});
}

template <typename Args>
void launch_norm(const char* norm, const Args& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  with_type(args.dtype, [&](auto zero) {
    with_row_shape(norm, args.rows, args.dim, [&](auto packs, auto warps) {
      constexpr int N = decltype(packs)::value, W = decltype(warps)::value;
      const auto kernel = args.maxima == nullptr
                              ? add_norm_kernel<Args, decltype(zero), N, W, false>
                              : add_norm_kernel<Args, decltype(zero), N, W, true>;
      kernel<<<blocks_for(args.rows, kForwardRows<W>), kForwardRows<W> * W * kWarp, 0, stream>>>(
          args);
    });
  });
  check_launch(norm);
}

/// Leaves the parameters' gradients in args.partial, one row a block; returns the blocks.
template <typename Args>
std::int64_t launch_norm_backward(const char* norm, const Args& args, cudaStream_t stream) {
  const std::int64_t blocks = norm_partials(args.rows);
  const auto launch = [&](auto zero, auto packs, auto warps, auto sum_x) {
    using T = decltype(zero);
    constexpr int N = decltype(packs)::value, W = decltype(warps)::value;
    const auto run = [&](auto staged, std::size_t bytes) {
      const auto kernel =
          add_norm_backward_kernel<Args, T, N, W, decltype(sum_x)::value, decltype(staged)::value>;
      allow_shared(kernel, norm, bytes);
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                           cudaSharedmemCarveoutMaxShared);
      kernel<<<static_cast<unsigned>(blocks), kNormThreads, bytes, stream>>>(args);
    };
    constexpr std::size_t kStaged = NormStaging<T, N>::kBytes;
    if constexpr (kStaged > kMinSharedBlock) {
      if (kStaged > gpu_limits().shared_block)
        return run(std::false_type{}, NormHeld<T, N>::kBytes);
    }
    run(std::true_type{}, kStaged);
  };
  with_type(args.dtype, [&](auto zero) {
    with_backward_shape(norm, args.dim, [&](auto packs, auto warps) {
      if constexpr (kCentered<Args>) {
        if constexpr (decltype(packs)::value <= 3) {
          if (args.grad_x_sums != nullptr) return launch(zero, packs, warps, std::true_type{});
        }
      }
      launch(zero, packs, warps, std::false_type{});
    });
  });
  check_launch(norm);
  return blocks;
}

}  // namespace dstrain::kernels::cuda
