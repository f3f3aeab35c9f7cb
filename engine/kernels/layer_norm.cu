#include <algorithm>

#include "engine/kernels/device.cuh"

namespace dstrain::kernels {
namespace {

constexpr int kRowsPerBlock = 8;  // one warp a row
constexpr std::int64_t kBackwardBlocks =
    264;  // two per SM of an H200; more would only make more partial sums

}  // namespace

std::int64_t norm_partials(std::int64_t rows) {
  return std::min(kBackwardBlocks,
                  std::max<std::int64_t>(1, (rows + kRowsPerBlock - 1) / kRowsPerBlock));
}

namespace cuda {
namespace {

/// The row stays in registers: N packs a lane, so that mean and variance take two passes over it at
/// no traffic.
template <typename T, int N>
__global__ void __launch_bounds__(kRowsPerBlock* kWarp)
    add_layer_norm_kernel(const AddLayerNorm a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const int packs = static_cast<int>(a.dim) / kPack;
  const std::int64_t first = row * packs;

  Pack<T> x[N], delta[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int pack = lane + n * kWarp;
    if (pack < packs) {
      x[n] = load<T, kPack>(a.x, first + pack);
      if (a.delta != nullptr) delta[n] = load<T, kPack>(a.delta, first + pack);
    }
  }

  float value[N][kPack];
  float total = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int pack = lane + n * kWarp;
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
      for (int i = 0; i < kPack; ++i) total += value[n][i];
    }
  }
  const float mean = warp_sum(total) / static_cast<float>(a.dim);

  float squares = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if (lane + n * kWarp < packs) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) squares += (value[n][i] - mean) * (value[n][i] - mean);
    }
  }
  const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(a.dim) + a.eps);

#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int pack = lane + n * kWarp;
    if (pack < packs) {
      float weight[kPack], bias[kPack];
      load<T, kPack>(a.weight, pack).unpack(weight);
      load<T, kPack>(a.bias, pack).unpack(bias);
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        value[n][i] = (value[n][i] - mean) * rstd * weight[i] + bias[i];
      store(a.y, first + pack, Pack<T>::of(value[n]));
    }
  }
  if (lane == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

/// W warps a row, N <= 3 packs a lane, so that two blocks fit on an SM; each lane keeps the
/// parameter gradients of its columns in registers over all its rows, the block adds its rows up in
/// order and writes one row of partial sums.
template <typename T, int N, int W>
__global__ void __launch_bounds__(kRowsPerBlock* kWarp, 2)
    add_layer_norm_backward_kernel(const AddLayerNormBackward a) {
  constexpr int kRowThreads = W * kWarp, kRows = kRowsPerBlock / W;
  extern __shared__ float columns[];  // [2, dim]
  __shared__ float2 warp_sums[2][kRowsPerBlock];
  const int thread = static_cast<int>(threadIdx.x) % kRowThreads,
            slot = static_cast<int>(threadIdx.x) / kRowThreads,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int dim = static_cast<int>(a.dim), packs = dim / kPack;
  float grad_weight[N][kPack] = {}, grad_bias[N][kPack] = {};

  int turn = 0;
  for (std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * kRows; base < a.rows;
       base += static_cast<std::int64_t>(gridDim.x) * kRows) {
    const std::int64_t row = base + slot;
    const bool live = row < a.rows;  // all warps of the block meet in the sums
    const std::int64_t first = row * packs;
    Pack<T> x[N], grad[N], past[N];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int pack = thread + n * kRowThreads;
      if (live && pack < packs) {
        x[n] = load<T, kPack>(a.sum, first + pack);
        grad[n] = load<T, kPack>(a.grad_y, first + pack);
        if (a.grad_sum != nullptr) past[n] = load<T, kPack>(a.grad_sum, first + pack);
      }
    }
    const float mean = live ? a.mean[row] : 0.0f, rstd = live ? a.rstd[row] : 0.0f;

    float sum_grad = 0, sum_grad_x = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int pack = thread + n * kRowThreads;
      if (live && pack < packs) {
        float xs[kPack], gs[kPack], weight[kPack];
        x[n].unpack(xs);
        grad[n].unpack(gs);
        load<T, kPack>(a.weight, pack).unpack(weight);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const float x_hat = (xs[i] - mean) * rstd;
          grad_weight[n][i] += gs[i] * x_hat;
          grad_bias[n][i] += gs[i];
          sum_grad += gs[i] * weight[i];
          sum_grad_x += gs[i] * weight[i] * x_hat;
        }
      }
    }
    sum_grad = warp_sum(sum_grad);
    sum_grad_x = warp_sum(sum_grad_x);
    if constexpr (W > 1) {
      // Two sets in turn: a fast warp may already write the next row's while a slow one reads.
      float2(&sums)[kRowsPerBlock] = warp_sums[turn];
      turn ^= 1;
      if (thread % kWarp == 0) sums[warp] = {sum_grad, sum_grad_x};
      __syncthreads();
      sum_grad = sum_grad_x = 0;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        sum_grad += sums[slot * W + w].x;
        sum_grad_x += sums[slot * W + w].y;
      }
    }
    sum_grad /= static_cast<float>(dim);
    sum_grad_x /= static_cast<float>(dim);

#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int pack = thread + n * kRowThreads;
      if (live && pack < packs) {
        float xs[kPack], gs[kPack], weight[kPack], out[kPack] = {};
        x[n].unpack(xs);
        grad[n].unpack(gs);
        load<T, kPack>(a.weight, pack).unpack(weight);
        if (a.grad_sum != nullptr) past[n].unpack(out);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const float x_hat = (xs[i] - mean) * rstd;
          out[i] += rstd * (gs[i] * weight[i] - sum_grad - x_hat * sum_grad_x);
        }
        store(a.grad_x, first + pack, Pack<T>::of(out));
      }
    }
  }

  for (int row = 0; row < kRows; ++row) {
    if (row == slot) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int pack = thread + n * kRowThreads;
        if (pack < packs) {
#pragma unroll
          for (int i = 0; i < kPack; ++i) {
            const int column = pack * kPack + i;
            columns[column] = (row == 0 ? 0.0f : columns[column]) + grad_weight[n][i];
            columns[dim + column] = (row == 0 ? 0.0f : columns[dim + column]) + grad_bias[n][i];
          }
        }
      }
    }
    __syncthreads();
  }
  float* partial = a.partial + static_cast<std::int64_t>(blockIdx.x) * 2 * dim;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * dim; i += static_cast<int>(blockDim.x))
    partial[i] = columns[i];
}

void check_dim(std::int64_t dim) {
  if (dim <= 0 || dim % kPack != 0 || dim > kMaxNormDim) {
    throw Error(ErrorKind::internal, "layer norm over " + std::to_string(dim) + " elements",
                "a multiple of 8 up to " + std::to_string(kMaxNormDim) + " works on a GPU");
  }
}

/// Calls `body` with the number of packs per lane as a constant.
template <typename Body>
void with_packs_per_lane(std::int64_t dim, const Body& body) {
  check_dim(dim);
  switch ((dim / kPack + kWarp - 1) / kWarp) {
    case 1:
      return body(std::integral_constant<int, 1>{});
    case 2:
      return body(std::integral_constant<int, 2>{});
    case 3:
      return body(std::integral_constant<int, 3>{});
    case 4:
      return body(std::integral_constant<int, 4>{});
    case 5:
      return body(std::integral_constant<int, 5>{});
    case 6:
      return body(std::integral_constant<int, 6>{});
    default:
      return body(std::integral_constant<int, 8>{});
  }
}

/// Calls `body` with packs per lane and warps per row as constants.
template <typename Body>
void with_row_shape(std::int64_t dim, const Body& body) {
  check_dim(dim);
  const std::int64_t packs = dim / kPack;
  using std::integral_constant;
  if (packs <= kWarp) return body(integral_constant<int, 1>{}, integral_constant<int, 1>{});
  if (packs <= 2 * kWarp) return body(integral_constant<int, 2>{}, integral_constant<int, 1>{});
  if (packs <= 3 * kWarp) return body(integral_constant<int, 3>{}, integral_constant<int, 1>{});
  if (packs <= 6 * kWarp) return body(integral_constant<int, 3>{}, integral_constant<int, 2>{});
  return body(integral_constant<int, 2>{}, integral_constant<int, 4>{});
}

}  // namespace

void add_layer_norm(const AddLayerNorm& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  with_type(args.dtype, [&](auto zero) {
    with_packs_per_lane(args.dim, [&](auto packs) {
      add_layer_norm_kernel<decltype(zero), decltype(packs)::value>
          <<<blocks_for(args.rows, kRowsPerBlock), kRowsPerBlock * kWarp, 0, stream>>>(args);
    });
  });
  check_launch("add_layer_norm");
}

void add_layer_norm_backward(const AddLayerNormBackward& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const std::int64_t blocks = norm_partials(args.rows);
  const std::size_t shared_bytes = 2 * sizeof(float) * static_cast<std::size_t>(args.dim);
  with_type(args.dtype, [&](auto zero) {
    with_row_shape(args.dim, [&](auto packs, auto warps) {
      add_layer_norm_backward_kernel<decltype(zero), decltype(packs)::value, decltype(warps)::value>
          <<<static_cast<unsigned>(blocks), kRowsPerBlock * kWarp, shared_bytes, stream>>>(args);
    });
  });
  check_launch("add_layer_norm_backward");
  add_partials(args.partial, blocks, 2 * args.dim, args.grad_weight, args.grad_bias, args.dim,
               stream);
}

}  // namespace cuda
}  // namespace dstrain::kernels
