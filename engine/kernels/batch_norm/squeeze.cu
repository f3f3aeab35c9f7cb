#include "engine/kernels/batch_norm/channels.cuh"
#include "engine/kernels/taken_sizes.h"

/// Squeeze and excitation: what a sample and channel needs of its pixels, in one pass; a block has
/// one sample and a slab of channels, so that what belongs to a sample stays in registers.
namespace dstrain::kernels::cuda {
namespace {

using activation_math::with_activation;

template <typename T>
inline constexpr bool kExact = std::is_same_v<T, float>;

constexpr int kMaxThreads = 512;          ///< of a block whose image has many pixels
constexpr std::int64_t kFewBlocks = 256;  ///< about two per SM of an H100 or H200

/// How the blocks of a sample share its channels and pixels: enough threads for the reads that have
/// to be under way, in narrow images too.
struct SampleShape {
  ChannelShape channels;
  int parts;  ///< blocks behind each other that share the pixels

  [[nodiscard]] dim3 grid(std::int64_t samples) const {
    return {static_cast<unsigned>(channels.slabs), static_cast<unsigned>(samples),
            static_cast<unsigned>(parts)};
  }
};

/// `max_threads`: of a block; `max_parts`: blocks that may share the pixels of a sample.
inline SampleShape sample_shape(std::int64_t samples, std::int64_t pixels, std::int64_t packs,
                                int max_threads, std::int64_t max_parts) {
  ChannelShape shape = channel_shape(packs);
  // Two packs of 16-bit numbers are a sector of memory.
  while (shape.slabs * samples < kFewBlocks && shape.lanes > 3) {
    shape.slabs = static_cast<int>((packs + shape.lanes / 2 - 1) / (shape.lanes / 2));
    shape.lanes = static_cast<int>((packs + shape.slabs - 1) / shape.slabs);
  }
  const std::int64_t wanted = (pixels + 7) / 8;  // eight pixels of a thread, or more
  shape.slots = static_cast<int>(
      std::clamp<std::int64_t>(wanted, kChannelThreads / shape.lanes, max_threads / shape.lanes));
  const std::int64_t parts = pixels / (8 * static_cast<std::int64_t>(shape.slots));
  return {shape, static_cast<int>(std::clamp<std::int64_t>(parts, 1, max_parts))};
}

/// Adds each thread's V sums of a channel over the slots, halving their number, and gives them
/// to use(channel, total). `shared` has room for threads * V numbers and is free again after.
template <int V, typename Use>
__device__ void add_slots_by_halves(const float (&sum)[V], const ChannelShape& shape,
                                    const ChannelPlace& place, float* shared, const Use& use) {
  const int row = shape.lanes * V;
  float* own = shared + place.slot * row + place.lane * V;
#pragma unroll
  for (int i = 0; i < V; ++i) own[i] = sum[i];
  int half = 1;
  while (2 * half < shape.slots) half *= 2;
  for (; half > 0; half /= 2) {
    __syncthreads();
    if (place.slot < half && place.slot + half < shape.slots) {
#pragma unroll
      for (int i = 0; i < V; ++i) own[i] += own[half * row + i];
    }
  }
  __syncthreads();
  if (place.slot == 0 && place.active) {
#pragma unroll
    for (int i = 0; i < V; ++i) use(place.pack * V + i, own[i]);
  }
  __syncthreads();
}

template <typename T, int V>
__global__ void __launch_bounds__(kMaxThreads, 2)
    squeeze_kernel(const Squeeze a, const ChannelShape shape) {
  extern __shared__ float shared[];
  const std::int64_t packs = a.channels / V, first = blockIdx.y * a.pixels;
  const ChannelPlace place(shape, packs);
  float sum[V] = {};
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
          sum[i] += to_float(from_float<T>(activation.value(x[i] * scale[i] + shift[i])));
      }
    });
  }
  add_slots_by_halves<V>(sum, shape, place, shared, [&](std::int64_t channel, float total) {
    static_cast<T*>(a.mean)[blockIdx.y * a.channels + channel] =
        from_float<T>(total / static_cast<float>(a.pixels));
  });
}

/// y = round(activation(x * scale + shift)) * gate.
template <typename T, int V>
__global__ void __launch_bounds__(kMaxThreads, 2)
    gated_apply_kernel(const BatchNormApply a, const ChannelShape shape) {
  const std::int64_t packs = a.channels / V, first = blockIdx.y * a.pixels;
  const ChannelPlace place(shape, packs);
  if (!place.active) return;
  float scale[V], shift[V], gate[V];
  load_channels<V>(a.scale, place.pack, 1, scale);
  load_channels<V>(a.shift, place.pack, 0, shift);
  load<float, V>(a.gate, blockIdx.y * packs + place.pack).unpack(gate);
  const auto pixels = static_cast<int>(a.pixels), step = shape.slots * static_cast<int>(gridDim.z);
  with_activation<kExact<T>>(a.activation, [&](const auto& activation) {
#pragma unroll 4
    for (int pixel = static_cast<int>(blockIdx.z) * shape.slots + place.slot; pixel < pixels;
         pixel += step) {
      const std::int64_t at = (first + pixel) * packs + place.pack;
      float x[V];
      load<T, V>(a.x, at).unpack(x);
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = activation.value(x[i] * scale[i] + shift[i]);
      Pack<T, V>::of(x).unpack(x);
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] *= gate[i];
      store(a.y, at, Pack<T, V>::of(x));
    }
  });
}

template <typename T, int V, bool kWrites>
__global__ void __launch_bounds__(kChannelThreads, 2)
    gate_backward_sums_kernel(const GateBackwardSums a, const ChannelShape shape) {
  extern __shared__ float shared[];
  const std::int64_t packs = a.channels / V, first = blockIdx.y * a.pixels;
  const ChannelPlace place(shape, packs);
  float sum[5][V] = {};
  if (place.active) {
    float mean[V], scale[V], shift[V];
    [[maybe_unused]] float gate[V];
    if constexpr (kWrites) load<float, V>(a.gate, blockIdx.y * packs + place.pack).unpack(gate);
    load_channels<V>(a.mean, place.pack, 0, mean);
    load_channels<V>(a.scale, place.pack, 1, scale);
    load_channels<V>(a.shift, place.pack, 0, shift);
    with_activation<kExact<T>>(a.activation, [&](const auto& activation) {
#pragma unroll 2
      for (std::int64_t pixel = place.slot; pixel < a.pixels; pixel += shape.slots) {
        const std::int64_t at = (first + pixel) * packs + place.pack;
        float x[V], grad[V];
        [[maybe_unused]] float y[V];
        load<T, V>(a.x, at).unpack(x);
        load<T, V>(a.grad_y, at).unpack(grad);
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const activation_math::Value value = activation.both(x[i] * scale[i] + shift[i]);
          const float off = x[i] - mean[i], through = grad[i] * value.slope;
          const float seen = to_float(from_float<T>(value.y));
          sum[0][i] += grad[i] * seen;
          sum[1][i] += through;
          sum[2][i] += value.slope;
          sum[3][i] += through * off;
          sum[4][i] += value.slope * off;
          if constexpr (kWrites) y[i] = seen * gate[i];
        }
        if constexpr (kWrites) store(a.y, at, Pack<T, V>::of(y));
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
__global__ void __launch_bounds__(kMaxThreads)
    spread_mean_kernel(const SpreadMean a, const ChannelShape shape) {
  const std::int64_t packs = a.channels / V, first = blockIdx.y * a.pixels;
  const ChannelPlace place(shape, packs);
  if (!place.active) return;
  float grad[V];
  load<T, V>(a.grad, blockIdx.y * packs + place.pack).unpack(grad);
#pragma unroll
  for (int i = 0; i < V; ++i) grad[i] /= static_cast<float>(a.pixels);
  const Pack<T, V> pack = Pack<T, V>::of(grad);
  const std::int64_t step = static_cast<std::int64_t>(shape.slots) * gridDim.z;
  for (std::int64_t pixel = static_cast<std::int64_t>(blockIdx.z) * shape.slots + place.slot;
       pixel < a.pixels; pixel += step)
    store(a.grad_x, (first + pixel) * packs + place.pack, pack);
}

/// Launches `kernel<T, V>` with a block for each sample and slab, which adds up K sums over the
/// pixels; where K is 0, several blocks may share the pixels.
template <int K, typename Args, typename Kernel>
void launch_samples(const char* name, const Args& args, const Kernel& kernel, cudaStream_t stream) {
  if (args.samples * args.pixels == 0 || args.channels == 0) return;
  require_taken(kPooledSamples, args.samples, name);
  with_type(args.dtype, [&](auto zero) {
    with_channel_width(args.channels, [&](auto width) {
      constexpr int V = decltype(width)::value;
      // Several sums have registers and shared memory for fewer threads.
      const SampleShape shape = sample_shape(args.samples, args.pixels, args.channels / V,
                                             K > 1 ? kChannelThreads : kMaxThreads, K > 0 ? 1 : 64);
      kernel(zero,
             width)<<<shape.grid(args.samples), static_cast<unsigned>(shape.channels.threads()),
                      block_sums_bytes<K, V>(shape.channels), stream>>>(args, shape.channels);
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

void gated_apply(const BatchNormApply& args, cudaStream_t stream) {
  launch_samples<0>(
      "gated_apply", args,
      [](auto zero, auto width) {
        return gated_apply_kernel<decltype(zero), decltype(width)::value>;
      },
      stream);
}

void gate_backward_sums(const GateBackwardSums& args, cudaStream_t stream) {
  const auto run = [&](auto writes) {
    launch_samples<5>(
        "gate_backward_sums", args,
        [](auto zero, auto width) {
          return gate_backward_sums_kernel<decltype(zero), decltype(width)::value,
                                           decltype(writes)::value>;
        },
        stream);
  };
  args.y == nullptr ? run(std::false_type{}) : run(std::true_type{});
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
