#include "engine/kernels/activation/drop_draw.h"
#include "engine/kernels/batch_norm/channels.cuh"

/// Batch norm: two kernels over the image each way, and between them one that adds up.
namespace dstrain::kernels {

std::int64_t batch_norm_partials(std::int64_t samples, std::int64_t pixels, std::int64_t channels) {
  const auto shape = cuda::channel_shape(channels / cuda::channel_width(channels));
  return cuda::row_blocks(shape, samples * pixels);
}

namespace cuda {
namespace {

using activation_math::with_activation;

template <typename T>
inline constexpr bool kExact = std::is_same_v<T, float>;

/// Blocks of a multiprocessor: registers are held down to what keeps enough loads under way.
template <typename T>
inline constexpr int kForwardResident = sizeof(T) == 2 ? 3 : 2;
inline constexpr int kBackwardResident = 2;
template <typename T>
inline constexpr int kForwardRows = sizeof(T) == 2 ? kChannelUnroll : 2;
template <typename T>
inline constexpr int kBackwardRows = sizeof(T) == 2 ? 2 : 1;  // two tensors are read

/// The factors of the samples in `room` [samples], or null where each is 1. All threads of the
/// block call it.
__device__ const float* sample_factors(const DropSamples& drop, std::int64_t samples, float* room) {
  if (drop.seed == nullptr) return nullptr;
  // Read here, so that a recorded graph serves steps of other seeds.
  const std::uint64_t key = dropout_key(static_cast<std::uint64_t>(*drop.seed), drop.place);
  constexpr int kElements = DropDraw::kElements;
  const DropDraw draw = DropDraw::of(drop.share);
  for (auto i = static_cast<int>(threadIdx.x); i < samples; i += static_cast<int>(blockDim.x)) {
    const Philox words = DropDraw::words_of(key, static_cast<std::uint64_t>(i / kElements));
    room[i] = draw.factor_of(words, i % kElements);
  }
  __syncthreads();
  return room;
}

template <typename T, int V>
__global__ void __launch_bounds__(kChannelThreads, kForwardResident<T>)
    sums_kernel(const BatchNormSums a, const ChannelShape shape) {
  extern __shared__ float shared[];
  const std::int64_t packs = a.channels / V;
  const ChannelPlace place(shape, packs);
  float sum[2][V] = {};
  if (place.active) {
    float centre[V];
    load<T, V>(a.x, a.centre_pixel * packs + place.pack).unpack(centre);
    if (blockIdx.y == 0 && place.slot == 0) store(a.centre, place.pack, Pack<float, V>::of(centre));
    // From the end, which was written last and may still be in the cache; what follows begins at
    // the beginning, which is read last here.
    const std::int64_t rows = valid_samples(a.valid, a.samples) * a.pixels;
    for_rows<kForwardRows<T>>(
        shape, place, rows,
        [&](std::int64_t row) { return load<T, V>(a.x, (rows - 1 - row) * packs + place.pack); },
        [&](std::int64_t, const Pack<T, V>& read) {
          float x[V];
          read.unpack(x);
#pragma unroll
          for (int i = 0; i < V; ++i) {
            const float d = x[i] - centre[i];
            sum[0][i] += d;
            sum[1][i] += d * d;
          }
        });
  }
  store_block_sums<2, V>(sum, shape, place, a.channels, shared,
                         a.partial + static_cast<std::int64_t>(blockIdx.y) * 2 * a.channels);
}

template <typename T, int V>
__global__ void __launch_bounds__(kChannelThreads, kBackwardResident)
    apply_kernel(const BatchNormApply a, const ChannelShape shape) {
  struct Read {
    Pack<T, V> x, residual;
  };
  extern __shared__ float shared[];
  const float* factors = sample_factors(a.drop, a.samples, shared);
  const std::int64_t packs = a.channels / V;
  const ChannelPlace place(shape, packs);
  if (!place.active) return;
  float scale[V], shift[V], residual_scale[V], residual_shift[V];
  load_channels<V>(a.scale, place.pack, 1, scale);
  load_channels<V>(a.shift, place.pack, 0, shift);
  load_channels<V>(a.residual_scale, place.pack, 1, residual_scale);
  load_channels<V>(a.residual_shift, place.pack, 0, residual_shift);
  const auto pixels = static_cast<std::uint32_t>(a.pixels);
  with_activation<kExact<T>>(a.activation, [&](const auto& activation) {
    for_rows<kForwardRows<T>>(
        shape, place, a.samples * a.pixels,
        [&](std::int64_t row) {
          const std::int64_t at = row * packs + place.pack;
          Read read;
          read.x = load<T, V>(a.x, at);
          if (a.residual != nullptr) read.residual = load<T, V>(a.residual, at);
          return read;
        },
        [&](std::int64_t row, const Read& read) {
          float x[V], added[V] = {};
          read.x.unpack(x);
          if (a.residual != nullptr) read.residual.unpack(added);
          const float factor =
              factors == nullptr ? 1.0f : factors[static_cast<std::uint32_t>(row) / pixels];
#pragma unroll
          for (int i = 0; i < V; ++i) {
            added[i] = added[i] * residual_scale[i] + residual_shift[i];
            x[i] = activation.value((x[i] * scale[i] + shift[i]) * factor + added[i]);
          }
          store(a.y, row * packs + place.pack, Pack<T, V>::of(x));
        });
  });
}

/// What backward reads of a row, and dz from it.
template <typename T, int V>
struct BackwardRow {
  Pack<T, V> x, y, grad_y;

  template <typename Args>
  __device__ static BackwardRow fetch(const Args& a, std::int64_t at) {
    BackwardRow read;
    read.x = load<T, V>(a.x, at);
    read.grad_y = load<T, V>(a.grad_y, at);
    if (a.y != nullptr) read.y = load<T, V>(a.y, at);
    return read;
  }
  template <typename Rule>
  __device__ void dz(const Rule& activation, bool by_output, const float (&wide)[V],
                     const float (&scale)[V], const float (&shift)[V], float (&out)[V]) const {
    grad_y.unpack(out);
    if (by_output) {
      float result[V];
      y.unpack(result);
#pragma unroll
      for (int i = 0; i < V; ++i) out[i] = result[i] > 0 ? out[i] : 0;
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i)
        out[i] = activation.through(wide[i] * scale[i] + shift[i], out[i]);
    }
  }
};

template <typename T, int V>
__global__ void __launch_bounds__(kChannelThreads, kBackwardResident)
    backward_sums_kernel(const BatchNormBackwardSums a, const ChannelShape shape) {
  extern __shared__ float shared[];
  const float* factors =
      sample_factors(a.drop, a.samples, shared + static_cast<int>(blockDim.x) * 2 * V);
  const auto pixels = static_cast<std::uint32_t>(a.pixels);
  using Row = BackwardRow<T, V>;
  const std::int64_t packs = a.channels / V;
  const ChannelPlace place(shape, packs);
  float sum[2][V] = {};
  if (place.active) {
    float mean[V], scale[V], shift[V];
    load_channels<V>(a.mean, place.pack, 0, mean);
    load_channels<V>(a.scale, place.pack, 1, scale);
    load_channels<V>(a.shift, place.pack, 0, shift);
    const std::int64_t valid = valid_samples(a.valid, a.samples) * a.pixels,
                       rows = a.grad_residual == nullptr ? valid : a.samples * a.pixels;
    with_activation<kExact<T>>(a.activation, [&](const auto& activation) {
      for_rows<kBackwardRows<T>>(
          shape, place, rows,  // from the end, as in sums_kernel
          [&](std::int64_t row) { return Row::fetch(a, (rows - 1 - row) * packs + place.pack); },
          [&](std::int64_t from_end, const Row& read) {
            const std::int64_t row = rows - 1 - from_end;
            float x[V], dz[V];
            read.x.unpack(x);
            read.dz(activation, a.y != nullptr, x, scale, shift, dz);
            if (a.grad_residual != nullptr) {
              if (row >= valid) {
#pragma unroll
                for (int i = 0; i < V; ++i) dz[i] = 0;
              }
              store(a.grad_residual, row * packs + place.pack, Pack<T, V>::of(dz));
              if (row >= valid) return;  // nan of x does not count
            }
            if (factors != nullptr) {
              const float factor = factors[static_cast<std::uint32_t>(row) / pixels];
#pragma unroll
              for (int i = 0; i < V; ++i) dz[i] *= factor;
            }
#pragma unroll
            for (int i = 0; i < V; ++i) {
              sum[0][i] += dz[i];
              sum[1][i] += dz[i] * (x[i] - mean[i]);
            }
          });
    });
  }
  store_block_sums<2, V>(sum, shape, place, a.channels, shared,
                         a.partial + static_cast<std::int64_t>(blockIdx.y) * 2 * a.channels);
}

template <typename T, int V>
__global__ void __launch_bounds__(kChannelThreads, kBackwardResident)
    backward_apply_kernel(const BatchNormBackwardApply a, const ChannelShape shape) {
  extern __shared__ float shared[];
  const float* factors = sample_factors(a.drop, a.samples, shared);
  const auto pixels = static_cast<std::uint32_t>(a.pixels);
  using Row = BackwardRow<T, V>;
  const std::int64_t packs = a.channels / V;
  const ChannelPlace place(shape, packs);
  if (!place.active) return;
  float mean[V], scale[V], shift[V], slope[V], offset[V];
  load_channels<V>(a.mean, place.pack, 0, mean);
  load_channels<V>(a.scale, place.pack, 1, scale);
  load_channels<V>(a.shift, place.pack, 0, shift);
  load_channels<V>(a.slope, place.pack, 0, slope);
  load_channels<V>(a.offset, place.pack, 0, offset);
  const std::int64_t valid = valid_samples(a.valid, a.samples) * a.pixels;
  with_activation<kExact<T>>(a.activation, [&](const auto& activation) {
    for_rows<kBackwardRows<T>>(
        shape, place, a.samples * a.pixels,
        [&](std::int64_t row) { return Row::fetch(a, row * packs + place.pack); },
        [&](std::int64_t row, const Row& read) {
          float x[V], dz[V], dx[V];
          read.x.unpack(x);
          read.dz(activation, a.y != nullptr, x, scale, shift, dz);
          const float factor =
              factors == nullptr ? 1.0f : factors[static_cast<std::uint32_t>(row) / pixels];
#pragma unroll
          for (int i = 0; i < V; ++i) {
            if (row >= valid) dz[i] = 0;
            dx[i] = scale[i] * (dz[i] * factor) + ((x[i] - mean[i]) * slope[i] + offset[i]);
            if (row >= valid) dx[i] = 0;
          }
          const std::int64_t at = row * packs + place.pack;
          if (a.grad_residual != nullptr) store(a.grad_residual, at, Pack<T, V>::of(dz));
          store(a.grad_x, at, Pack<T, V>::of(dx));
        });
  });
}

constexpr int kFinishChannels = 8;  // of a block: a sector of 32 bytes
constexpr int kFinishRows = 128;    // of partial sums that are under way together
constexpr int kFinishThreads = kFinishChannels * kFinishRows;

unsigned finish_grid(std::int64_t channels) { return blocks_for(channels, kFinishChannels); }
/// Few partial sums are added by few threads, which start sooner.
dim3 finish_block(std::int64_t partials) {
  return {kFinishChannels, partials > kWarp ? unsigned{kFinishRows} : unsigned{kWarp}};
}

/// One thread of each channel of a block goes on with the sums: the first lane of a warp.
struct FinishPlace {
  std::int64_t channel;
  bool active;
  __device__ explicit FinishPlace(std::int64_t channels) {
    const auto thread =
        static_cast<int>(threadIdx.y) * kFinishChannels + static_cast<int>(threadIdx.x);
    channel = static_cast<std::int64_t>(blockIdx.x) * kFinishChannels + thread / kWarp;
    active = thread % kWarp == 0 && thread / kWarp < kFinishChannels && channel < channels;
  }
};

/// Both sums of a FinishPlace's channel over the rows of `partial` [rows, 2, channels]. All threads
/// of the block call it.
struct TwoSums {
  float first, second;
};
__device__ TwoSums add_rows(const float* partial, std::int64_t rows, std::int64_t channels) {
  __shared__ float sums[2][kFinishRows][kFinishChannels + 1];
  const std::int64_t channel =
      static_cast<std::int64_t>(blockIdx.x) * kFinishChannels + threadIdx.x;
  const auto step = static_cast<int>(blockDim.y);
  float total[2] = {};
  if (channel < channels) {
#pragma unroll 8
    for (std::int64_t row = threadIdx.y; row < rows; row += step) {
      total[0] += partial[row * 2 * channels + channel];
      total[1] += partial[(row * 2 + 1) * channels + channel];
    }
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) sums[k][threadIdx.y][threadIdx.x] = total[k];
  __syncthreads();
  const auto thread =
      static_cast<int>(threadIdx.y) * kFinishChannels + static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  if (warp >= kFinishChannels) return {};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    total[k] = sums[k][lane][warp];
    if (step == kFinishRows)
      total[k] = (total[k] + sums[k][lane + 64][warp]) +
                 (sums[k][lane + 32][warp] + sums[k][lane + 96][warp]);
#pragma unroll
    for (int half = kWarp / 2; half > 0; half /= 2)
      total[k] += __shfl_down_sync(0xffffffffu, total[k], half);
  }
  return {total[0], total[1]};
}

__global__ void __launch_bounds__(kFinishThreads) move_sums_kernel(const BatchNormMoveSums a) {
  const auto [channel, active] = FinishPlace(a.channels);
  const TwoSums sums = add_rows(a.partial, a.partials, a.channels);
  if (!active) return;
  const auto count = static_cast<double>(valid_samples(a.valid, a.samples) * a.pixels);
  const double sum = sums.first, off = static_cast<double>(a.centre[channel]) - a.origin[channel];
  a.sums[channel] = sum + count * off;
  a.sums[a.channels + channel] = sums.second + off * (2 * sum + count * off);
  if (channel == 0) a.sums[2 * a.channels] = count;
}

__global__ void __launch_bounds__(kFinishThreads) add_sums_kernel(const BatchNormAddSums a) {
  const auto [channel, active] = FinishPlace(a.channels);
  const TwoSums sums = add_rows(a.partial, a.partials, a.channels);
  if (!active) return;
  a.sums[channel] = sums.first;
  a.sums[a.channels + channel] = sums.second * a.rstd[channel];
}

/// Statistics of one channel, the variance biased.
struct MeanVariance {
  float mean, variance, count;
};

/// From `sums` of this rank, or those of all ranks where they are shared.
__device__ MeanVariance mean_variance(const BatchNormFinish& a, const TwoSums& sums,
                                      std::int64_t channel, float centre) {
  float count, off, raw;
  if (a.shared == nullptr) {
    count = static_cast<float>(valid_samples(a.valid, a.samples) * a.pixels);
    const float share = 1.0f / fmaxf(count, 1.0f);
    off = sums.first * share;
    raw = sums.second * share - off * off;
  } else {
    const double all = a.shared[2 * a.channels], share = 1 / fmax(all, 1.0),
                 wide = a.shared[channel] * share;
    count = static_cast<float>(all);
    off = static_cast<float>(wide);
    raw = static_cast<float>(a.shared[a.channels + channel] * share - wide * wide);
  }
  return {centre + off, raw < 0 ? 0 : raw, count};  // nan stays
}

/// Weight and bias of a channel.
struct Affine {
  float weight, bias;
  template <typename T, typename Args>
  __device__ static Affine of(const Args& a, std::int64_t channel) {
    return {to_float(static_cast<const T*>(a.weight)[channel]),
            to_float(static_cast<const T*>(a.bias)[channel])};
  }
};

__device__ void fold(float mean, float rstd, const Affine& affine, std::int64_t channel,
                     float* scale, float* shift) {
  const float factor = affine.weight * rstd;
  scale[channel] = factor;
  shift[channel] = affine.bias - mean * factor;
}

template <typename T>
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const BatchNormFinish a) {
  const auto [channel, active] = FinishPlace(a.channels);
  // Read while the sums are under way.
  float centre = 0, samples = 0, mean_sum = 0, variance_sum = 0;
  Affine affine{};
  if (active) {
    centre = a.centre[channel];
    affine = Affine::of<T>(a, channel);
    samples = static_cast<float>(valid_samples(a.valid, a.samples));
    if (a.mean_sum != nullptr) {
      mean_sum = a.mean_sum[channel];
      variance_sum = a.variance_sum[channel];
    }
  }
  TwoSums sums{};
  if (a.shared == nullptr) sums = add_rows(a.partial, a.partials, a.channels);
  if (!active) return;
  const auto [mean, variance, count] = mean_variance(a, sums, channel, centre);
  const float rstd = 1.0f / sqrtf(variance + a.eps);
  a.mean[channel] = mean;
  a.rstd[channel] = rstd;
  if (channel == 0) *a.count = count;
  if (a.mean_sum != nullptr) {
    a.mean_sum[channel] = mean_sum + samples * mean;
    a.variance_sum[channel] =
        variance_sum + samples * (variance * (count / fmaxf(count - 1.0f, 1.0f)));
  }
  fold(mean, rstd, affine, channel, a.scale, a.shift);
}

template <typename T>
__global__ void __launch_bounds__(kChannelThreads) fold_kernel(const BatchNormFold a) {
  const std::int64_t channel =
      static_cast<std::int64_t>(blockIdx.x) * kChannelThreads + threadIdx.x;
  if (channel >= a.channels) return;
  fold(a.mean[channel], a.rstd[channel], Affine::of<T>(a, channel), channel, a.scale, a.shift);
}

__global__ void __launch_bounds__(kFinishThreads)
    backward_finish_kernel(const BatchNormBackwardFinish a) {
  const auto [channel, active] = FinishPlace(a.channels);
  const bool own = a.all_sums == nullptr;
  // Read while the sums are under way.
  float count = 0, rstd = 0, scale = 0, grad_weight = 0, grad_bias = 0;
  TwoSums all{};
  if (active) {
    count = *a.count;
    rstd = a.rstd[channel];
    scale = a.scale[channel];
    if (!own) all = {a.all_sums[channel], a.all_sums[a.channels + channel]};
    if (a.grad_weight != nullptr) grad_weight = a.grad_weight[channel];
    if (a.grad_bias != nullptr) grad_bias = a.grad_bias[channel];
  }
  const TwoSums sums = add_rows(a.partial, a.partials, a.channels);
  if (!active) return;
  const float share = count > 0 ? 1.0f / count : 0;
  const float along = rstd * sums.second;  // the sum of dz * x_hat
  if (own) all = {sums.first, along};
  a.slope[channel] = -scale * rstd * all.second * share;
  a.offset[channel] = -scale * all.first * share;
  if (a.grad_weight != nullptr) a.grad_weight[channel] = grad_weight + along;
  if (a.grad_bias != nullptr) a.grad_bias[channel] = grad_bias + sums.first;
}

/// Shared memory for the factors of the samples, where a kernel knows them.
template <typename Args>
std::size_t factors_bytes(const Args& args) {
  if constexpr (requires { args.drop; }) {
    if (args.drop.seed == nullptr) return 0;
    if (args.samples > kDropSamples) {
      throw Error(ErrorKind::internal, "drop path of " + std::to_string(args.samples) +
                                           " samples: at most " + std::to_string(kDropSamples));
    }
    return sizeof(float) * static_cast<std::size_t>(args.samples);
  }
  return 0;
}

/// Launches `kernel<T, V>`, which sums K numbers per channel (0: none), over all rows.
template <int K, typename Args, typename Kernel>
void launch_rows(const char* name, const Args& args, const Kernel& kernel, cudaStream_t stream) {
  const std::int64_t rows = args.samples * args.pixels;
  if (rows == 0 || args.channels == 0) return;
  with_type(args.dtype, [&](auto zero) {
    with_channel_width(args.channels, [&](auto width) {
      constexpr int V = decltype(width)::value;
      const ChannelShape shape = channel_shape(args.channels / V);
      const dim3 grid(static_cast<unsigned>(shape.slabs),
                      static_cast<unsigned>(row_blocks(shape, rows)));
      kernel(zero, width)<<<grid, static_cast<unsigned>(shape.threads()),
                            block_sums_bytes<K, V>(shape) + factors_bytes(args), stream>>>(args,
                                                                                           shape);
    });
  });
  check_launch(name);
}

}  // namespace

void batch_norm_sums(const BatchNormSums& args, cudaStream_t stream) {
  launch_rows<2>(
      "batch_norm_sums", args,
      [](auto zero, auto width) { return sums_kernel<decltype(zero), decltype(width)::value>; },
      stream);
}

void batch_norm_apply(const BatchNormApply& args, cudaStream_t stream) {
  if (args.gate != nullptr) return gated_apply(args, stream);
  launch_rows<0>(
      "batch_norm_apply", args,
      [](auto zero, auto width) { return apply_kernel<decltype(zero), decltype(width)::value>; },
      stream);
}

void batch_norm_backward_sums(const BatchNormBackwardSums& args, cudaStream_t stream) {
  launch_rows<2>(
      "batch_norm_backward_sums", args,
      [](auto zero, auto width) {
        return backward_sums_kernel<decltype(zero), decltype(width)::value>;
      },
      stream);
}

void batch_norm_backward_apply(const BatchNormBackwardApply& args, cudaStream_t stream) {
  launch_rows<0>(
      "batch_norm_backward_apply", args,
      [](auto zero, auto width) {
        return backward_apply_kernel<decltype(zero), decltype(width)::value>;
      },
      stream);
}

void batch_norm_move_sums(const BatchNormMoveSums& args, cudaStream_t stream) {
  if (args.channels == 0) return;
  move_sums_kernel<<<finish_grid(args.channels), finish_block(args.partials), 0, stream>>>(args);
  check_launch("batch_norm_move_sums");
}

void batch_norm_add_sums(const BatchNormAddSums& args, cudaStream_t stream) {
  if (args.channels == 0) return;
  add_sums_kernel<<<finish_grid(args.channels), finish_block(args.partials), 0, stream>>>(args);
  check_launch("batch_norm_add_sums");
}

void batch_norm_finish(const BatchNormFinish& args, cudaStream_t stream) {
  if (args.channels == 0) return;
  with_type(args.dtype, [&](auto zero) {
    finish_kernel<decltype(zero)>
        <<<finish_grid(args.channels), finish_block(args.partials), 0, stream>>>(args);
  });
  check_launch("batch_norm_finish");
}

void batch_norm_fold(const BatchNormFold& args, cudaStream_t stream) {
  if (args.channels == 0) return;
  with_type(args.dtype, [&](auto zero) {
    fold_kernel<decltype(zero)>
        <<<blocks_for(args.channels, kChannelThreads), kChannelThreads, 0, stream>>>(args);
  });
  check_launch("batch_norm_fold");
}

void batch_norm_backward_finish(const BatchNormBackwardFinish& args, cudaStream_t stream) {
  if (args.channels == 0) return;
  backward_finish_kernel<<<finish_grid(args.channels), finish_block(args.partials), 0, stream>>>(
      args);
  check_launch("batch_norm_backward_finish");
}

}  // namespace cuda
}  // namespace dstrain::kernels
