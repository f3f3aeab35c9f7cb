#include "engine/kernels/batch_norm/channels.cuh"

/// Squeeze and excitation: what a sample and channel needs of its pixels, in one pass; a block has
/// one sample and a slab of channels.
namespace dstrain::kernels::cuda {
namespace {

using activation_math::with_activation;

template <typename T>
inline constexpr bool kExact = std::is_same_v<T, float>;

template <typename T, int V>
__global__ void __launch_bounds__(kChannelThreads)
    squeeze_kernel(const Squeeze a, const ChannelShape shape) {
  extern __shared__ float shared[];
  const std::int64_t packs = a.channels / V, first = blockIdx.y * a.pixels;
  const ChannelPlace place(shape, packs);
  float sum[1][V] = {};
  if (place.active) {
    float scale[V], shift[V];
    load_channels<V>(a.scale, place.pack, 1, scale);
    load_channels<V>(a.shift, place.pack, 0, shift);
    const Activation kind = a.scale == nullptr ? Activation::none : a.activation;
    with_activation<kExact<T>>(kind, [&](const auto& activation) {
#pragma unroll 4
      for (std::int64_t pixel = place.slot; pixel < a.pixels; pixel += shape.slots) {
        float x[V];
        load<T, V>(a.x, (first + pixel) * packs + place.pack).unpack(x);
#pragma unroll
        for (int i = 0; i < V; ++i)
          sum[0][i] += to_float(from_float<T>(activation.value(x[i] * scale[i] + shift[i])));
      }
    });
  }
  add_slots<1, V>(sum, shape, place, shared, [&](int, std::int64_t channel, float total) {
    if (channel < a.channels) {
      static_cast<T*>(a.mean)[blockIdx.y * a.channels + channel] =
          from_float<T>(total / static_cast<float>(a.pixels));
    }
  });
}

template <typename T, int V>
__global__ void __launch_bounds__(kChannelThreads, 2)
    gate_backward_sums_kernel(const GateBackwardSums a, const ChannelShape shape) {
  extern __shared__ float shared[];
  const std::int64_t packs = a.channels / V, first = blockIdx.y * a.pixels;
  const ChannelPlace place(shape, packs);
  float sum[5][V] = {};
  if (place.active) {
    float mean[V], scale[V], shift[V];
    load_channels<V>(a.mean, place.pack, 0, mean);
    load_channels<V>(a.scale, place.pack, 1, scale);
    load_channels<V>(a.shift, place.pack, 0, shift);
    with_activation<kExact<T>>(a.activation, [&](const auto& activation) {
#pragma unroll 2
      for (std::int64_t pixel = place.slot; pixel < a.pixels; pixel += shape.slots) {
        const std::int64_t at = (first + pixel) * packs + place.pack;
        float x[V], grad[V];
        load<T, V>(a.x, at).unpack(x);
        load<T, V>(a.grad_y, at).unpack(grad);
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const activation_math::Value value = activation.both(x[i] * scale[i] + shift[i]);
          const float off = x[i] - mean[i], through = grad[i] * value.slope;
          sum[0][i] += grad[i] * to_float(from_float<T>(value.y));
          sum[1][i] += through;
          sum[2][i] += value.slope;
          sum[3][i] += through * off;
          sum[4][i] += value.slope * off;
        }
      }
    });
  }
  add_slots<5, V>(sum, shape, place, shared, [&](int k, std::int64_t channel, float total) {
    if (channel >= a.channels) return;
    if (k == 0) {
      a.grad_gate[blockIdx.y * a.channels + channel] = total;
    } else {
      a.sums[(static_cast<std::int64_t>(blockIdx.y) * 4 + (k - 1)) * a.channels + channel] = total;
    }
  });
}

constexpr int kCombineRows = 16;

__global__ void __launch_bounds__(kWarp* kCombineRows)
    gate_backward_combine_kernel(const GateBackwardCombine a) {
  __shared__ float sums[2][kCombineRows][kWarp + 1];
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const std::int64_t samples = valid_samples(a.valid, a.samples);
  const float share = 1.0f / static_cast<float>(a.pixels);
  float total[2] = {};
  if (channel < a.channels) {
#pragma unroll 4
    for (std::int64_t sample = threadIdx.y; sample < samples; sample += kCombineRows) {
      const std::int64_t at = sample * a.channels + channel;
      const float gate = a.gate[at], grad = a.grad_mean[at] * share;
      const float* s = a.sums + sample * 4 * a.channels + channel;
      total[0] += gate * s[0] + grad * s[a.channels];
      total[1] += gate * s[2 * a.channels] + grad * s[3 * a.channels];
    }
  }
  sums[0][threadIdx.y][threadIdx.x] = total[0];
  sums[1][threadIdx.y][threadIdx.x] = total[1];
  __syncthreads();
  if (threadIdx.y == 0 && channel < a.channels) {
    for (int y = 1; y < kCombineRows; ++y) {
      total[0] += sums[0][y][threadIdx.x];
      total[1] += sums[1][y][threadIdx.x];
    }
    a.partial[channel] = total[0];
    a.partial[a.channels + channel] = total[1];
  }
}

template <typename T, int V>
__global__ void __launch_bounds__(kChannelThreads)
    spread_mean_kernel(const SpreadMean a, const ChannelShape shape) {
  const std::int64_t packs = a.channels / V, first = blockIdx.y * a.pixels;
  const ChannelPlace place(shape, packs);
  if (!place.active) return;
  float grad[V];
  load<T, V>(a.grad, blockIdx.y * packs + place.pack).unpack(grad);
#pragma unroll
  for (int i = 0; i < V; ++i) grad[i] /= static_cast<float>(a.pixels);
  const Pack<T, V> pack = Pack<T, V>::of(grad);
  for (std::int64_t pixel = place.slot; pixel < a.pixels; pixel += shape.slots)
    store(a.grad_x, (first + pixel) * packs + place.pack, pack);
}

/// Launches `kernel<T, V>` with a block for each sample and slab; K sums of each channel.
template <int K, typename Args, typename Kernel>
void launch_samples(const char* name, const Args& args, const Kernel& kernel, cudaStream_t stream) {
  if (args.samples * args.pixels == 0 || args.channels == 0) return;
  if (args.samples > 65535) {
    throw Error(ErrorKind::internal, std::string(name) + " of " + std::to_string(args.samples) +
                                         " samples: at most 65535");
  }
  with_type(args.dtype, [&](auto zero) {
    with_channel_width(args.channels, [&](auto width) {
      constexpr int V = decltype(width)::value;
      const ChannelShape shape = channel_shape(args.channels / V);
      const dim3 grid(static_cast<unsigned>(shape.slabs), static_cast<unsigned>(args.samples));
      kernel(zero, width)<<<grid, static_cast<unsigned>(shape.threads()),
                            block_sums_bytes<K, V>(shape), stream>>>(args, shape);
    });
  });
  check_launch(name);
}

}  // namespace

void squeeze(const Squeeze& args, cudaStream_t stream) {
  launch_samples<1>(
      "squeeze", args,
      [](auto zero, auto width) { return squeeze_kernel<decltype(zero), decltype(width)::value>; },
      stream);
}

void gate_backward_sums(const GateBackwardSums& args, cudaStream_t stream) {
  launch_samples<5>(
      "gate_backward_sums", args,
      [](auto zero, auto width) {
        return gate_backward_sums_kernel<decltype(zero), decltype(width)::value>;
      },
      stream);
}

void gate_backward_combine(const GateBackwardCombine& args, cudaStream_t stream) {
  if (args.channels == 0) return;
  gate_backward_combine_kernel<<<blocks_for(args.channels, kWarp), dim3(kWarp, kCombineRows), 0,
                                 stream>>>(args);
  check_launch("gate_backward_combine");
}

void spread_mean(const SpreadMean& args, cudaStream_t stream) {
  launch_samples<0>(
      "spread_mean", args,
      [](auto zero, auto width) {
        return spread_mean_kernel<decltype(zero), decltype(width)::value>;
      },
      stream);
}

}  // namespace dstrain::kernels::cuda
