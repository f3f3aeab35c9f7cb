#include <algorithm>

#include "engine/kernels/device.cuh"
#include "engine/kernels/pool/kernels.h"

/// A thread has V channels of a pixel of its result; neighbouring threads have neighbouring
/// channels. Backward asks each window that holds the pixel, so that nothing is added atomically.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// The pixel and the channels of a thread.
struct PoolPlace {
  std::int64_t sample, pack;
  int y, x;

  __device__ PoolPlace(std::int64_t index, std::int64_t packs, std::int64_t height,
                       std::int64_t width) {
    pack = index % packs;
    index /= packs;
    x = static_cast<int>(index % width);
    index /= width;
    y = static_cast<int>(index % height);
    sample = index / height;
  }
};

template <typename T, int V>
__global__ void __launch_bounds__(kThreads) max_pool_kernel(const MaxPool a, std::int64_t items) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= items) return;
  const PoolShape& s = a.shape;
  const std::int64_t packs = s.channels / V;
  const PoolPlace place(index, packs, s.out_height, s.out_width);
  float best[V];
  std::uint8_t which[V];
  bool first = true;
  for (int ky = 0; ky < s.kernel; ++ky) {
    const int y = place.y * s.stride - s.before + ky;
    if (y < 0 || y >= s.height) continue;
    for (int kx = 0; kx < s.kernel; ++kx) {
      const int x = place.x * s.stride - s.before + kx;
      if (x < 0 || x >= s.width) continue;
      float value[V];
      load<T, V>(a.x, ((place.sample * s.height + y) * s.width + x) * packs + place.pack)
          .unpack(value);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (first || value[i] > best[i] || isnan(value[i])) {
          best[i] = value[i];
          which[i] = static_cast<std::uint8_t>(ky * s.kernel + kx);
        }
      }
      first = false;
    }
  }
  store(a.y, index, Pack<T, V>::of(best));
  if (a.place == nullptr) return;
  if constexpr (V == 8) {
    std::uint64_t all = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) all |= static_cast<std::uint64_t>(which[i]) << (8 * i);
    reinterpret_cast<std::uint64_t*>(a.place)[index] = all;
  } else {
    a.place[index] = which[0];
  }
}

template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    max_pool_backward_kernel(const MaxPoolBackward a, std::int64_t items) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= items) return;
  const PoolShape& s = a.shape;
  const std::int64_t packs = s.channels / V;
  const PoolPlace place(index, packs, s.height, s.width);
  // Windows that hold row y: those from ceil((y + before - kernel + 1) / stride) on.
  const auto from = [&](int at) {
    const int low = at + s.before - s.kernel + 1;
    return low <= 0 ? 0 : (low + s.stride - 1) / s.stride;
  };
  const int end_y = min((place.y + s.before) / s.stride + 1, static_cast<int>(s.out_height)),
            end_x = min((place.x + s.before) / s.stride + 1, static_cast<int>(s.out_width));
  float sum[V] = {};
  for (int oy = from(place.y); oy < end_y; ++oy) {
    for (int ox = from(place.x); ox < end_x; ++ox) {
      const int own =
          (place.y - oy * s.stride + s.before) * s.kernel + (place.x - ox * s.stride + s.before);
      const std::int64_t at =
          ((place.sample * s.out_height + oy) * s.out_width + ox) * packs + place.pack;
      float grad[V];
      load<T, V>(a.grad_y, at).unpack(grad);
      std::uint64_t all;
      if constexpr (V == 8) {
        all = reinterpret_cast<const std::uint64_t*>(a.place)[at];
      } else {
        all = a.place[at];
      }
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (static_cast<int>((all >> (8 * i)) & 0xff) == own) sum[i] += grad[i];
      }
    }
  }
  store(a.grad_x, index, Pack<T, V>::of(sum));
}

/// Launches `kernel<T, V>` with a thread for each V channels of [samples, height, width, channels].
template <typename Args, typename Kernel>
void launch_pixels(const char* name, const Args& args, std::int64_t height, std::int64_t width,
                   const Kernel& kernel, cudaStream_t stream) {
  const std::int64_t elements = args.shape.samples * height * width * args.shape.channels;
  if (elements <= 0) return;
  with_type(args.dtype, [&](auto zero) {
    const auto run = [&](auto pack) {
      constexpr int V = decltype(pack)::value;
      const std::int64_t items = elements / V;
      kernel(zero, pack)<<<blocks_for(items, kThreads), kThreads, 0, stream>>>(args, items);
    };
    if (args.shape.channels % kPack == 0) {
      run(std::integral_constant<int, kPack>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
  });
  check_launch(name);
}

}  // namespace

void max_pool(const MaxPool& args, cudaStream_t stream) {
  launch_pixels(
      "max_pool", args, args.shape.out_height, args.shape.out_width,
      [](auto zero, auto pack) { return max_pool_kernel<decltype(zero), decltype(pack)::value>; },
      stream);
}

void max_pool_backward(const MaxPoolBackward& args, cudaStream_t stream) {
  launch_pixels(
      "max_pool_backward", args, args.shape.height, args.shape.width,
      [](auto zero, auto pack) {
        return max_pool_backward_kernel<decltype(zero), decltype(pack)::value>;
      },
      stream);
}

}  // namespace dstrain::kernels::cuda
