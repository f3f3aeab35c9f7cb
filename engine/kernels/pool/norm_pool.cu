#include <type_traits>

#include "engine/kernels/batch_norm/channels.cuh"
#include "engine/kernels/pool/norm_pool_kernel.h"

/// Forward, a thread has V channels of one window after the other; backward, of squares of 2 x 2
/// pixels, each of which asks the windows that hold it.
namespace dstrain::kernels {
namespace {

std::int64_t squares(const PoolShape& s) {
  return s.samples * ((s.height + 1) / 2) * ((s.width + 1) / 2);
}

}  // namespace

std::int64_t norm_pool_partials(const PoolShape& shape) {
  return cuda::row_blocks(cuda::channel_shape(shape.channels / cuda::channel_width(shape.channels)),
                          squares(shape));
}

namespace cuda {
namespace {

/// A row of [samples, height, width] taken apart, in 32 bits.
struct PixelOf {
  std::int64_t sample;
  int y, x;

  __device__ PixelOf(std::int64_t row, std::int64_t height, std::int64_t width) {
    const auto index = static_cast<std::uint32_t>(row), across = static_cast<std::uint32_t>(width),
               down = static_cast<std::uint32_t>(height), line = index / across;
    x = static_cast<int>(index - line * across);
    sample = line / down;
    y = static_cast<int>(line - static_cast<std::uint32_t>(sample) * down);
  }
};

/// A number that is not negative, rounded, with its place behind it, so that the largest key is of
/// the largest number, of equal ones of the first.
template <typename T>
struct Keys {
  using Key = std::conditional_t<sizeof(T) == 2, std::uint32_t, std::uint64_t>;
  using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;
  static constexpr int kShift = 8 * sizeof(T);

  __device__ static Key of(float value, int place) {
    const T rounded = from_float<T>(value);
    Bits bits;
    memcpy(&bits, &rounded, sizeof(bits));
    return static_cast<Key>(bits) << kShift | static_cast<Key>(kNoPlace - place);
  }
  __device__ static T value(Key key) {
    const auto bits = static_cast<Bits>(key >> kShift);
    T value;
    memcpy(&value, &bits, sizeof(value));
    return value;
  }
  __device__ static std::uint8_t place(Key key) {
    return key >> kShift == 0 ? kNoPlace : static_cast<std::uint8_t>(kNoPlace - (key & 0xff));
  }
};

/// Two numbers of 16 bits in a word.
template <typename T>
struct Pairs {
  using Two = TwoOf<T>;

  __device__ static Two of_word(std::uint32_t word) {
    Two two;
    memcpy(&two, &word, sizeof(two));
    return two;
  }
  /// Both rounded, and zero where they are below.
  __device__ static std::uint32_t relu(float low, float high) {
    std::uint32_t word;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    const activation_math::Clamp relu{0.0f, activation_math::kInfinite};
    const Pack<T, 2> both{from_float<T>(relu.value(low)), from_float<T>(relu.value(high))};
    memcpy(&word, &both, sizeof(word));
#else
    if constexpr (std::is_same_v<T, __half>) {
      asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    }
#endif
    return word;
  }
  __device__ static std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    const Two two = __hmax2_nan(of_word(a), of_word(b));
    std::uint32_t word;
    memcpy(&word, &two, sizeof(word));
    return word;
  }
  /// All bits of those that are equal; nan is equal to everything.
  __device__ static std::uint32_t equal_or_nan(std::uint32_t a, std::uint32_t b) {
    return __hequ2_mask(of_word(a), of_word(b));
  }
  __device__ static std::uint32_t equal(std::uint32_t a, std::uint32_t b) {
    return __heq2_mask(of_word(a), of_word(b));
  }
};

/// y and places of eight channels, whose windows' elements are `rounded`, or zero outside the
/// image.
template <typename T, int kTaps>
__device__ void store_largest(const std::uint32_t (&rounded)[kTaps][kPack / 2], std::int64_t at,
                              const NormMaxPool& a) {
  using Two = Pairs<T>;
  constexpr int kWords = kPack / 2;
  constexpr std::uint32_t kBoth = 0x10001;
  std::uint32_t best[kWords], which[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    best[i] = rounded[0][i];
#pragma unroll
    for (int tap = 1; tap < kTaps; ++tap) best[i] = Two::larger(best[i], rounded[tap][i]);
    which[i] = 0;
#pragma unroll
    for (int tap = kTaps - 1; tap >= 0; --tap) {
      const std::uint32_t here = Two::equal_or_nan(rounded[tap][i], best[i]);
      which[i] = (here & (tap * kBoth)) | (~here & which[i]);
    }
    which[i] |= Two::equal(best[i], 0) & (kNoPlace * kBoth);
  }
  static_cast<uint4*>(a.y)[at] = make_uint4(best[0], best[1], best[2], best[3]);
  reinterpret_cast<uint2*>(a.place)[at] =
      make_uint2(__byte_perm(which[0], which[1], 0x6420), __byte_perm(which[2], which[3], 0x6420));
}

template <typename T, int V, int K>
__global__ void __launch_bounds__(kChannelThreads, 2)
    norm_max_pool_kernel(const NormMaxPool a, const ChannelShape shape) {
  struct Read {
    Pack<T, V> x[K * K];
    std::uint32_t inside;
  };
  using Key = typename Keys<T>::Key;
  const PoolShape& s = a.shape;
  const std::int64_t packs = s.channels / V;
  const ChannelPlace place(shape, packs);
  if (!place.active) return;
  float scale[V], shift[V];
  load_channels<V>(a.scale, place.pack, 1, scale);
  load_channels<V>(a.shift, place.pack, 0, shift);
  constexpr int kBefore = K == 3 ? 1 : 0;
  const activation_math::Clamp relu{0.0f, activation_math::kInfinite};
  for_rows<K == 2 && sizeof(T) == 2 ? 2 : 1>(
      shape, place, s.samples * s.out_height * s.out_width,
      [&](std::int64_t row) {
        const PixelOf window(row, s.out_height, s.out_width);
        Read read;
        read.inside = 0;
#pragma unroll
        for (int tap = 0; tap < K * K; ++tap) {
          const int y = 2 * window.y - kBefore + tap / K, x = 2 * window.x - kBefore + tap % K;
          if (y < 0 || y >= s.height || x < 0 || x >= s.width) continue;
          read.inside |= 1u << tap;
          read.x[tap] =
              load<T, V>(a.x, ((window.sample * s.height + y) * s.width + x) * packs + place.pack);
        }
        return read;
      },
      [&](std::int64_t row, const Read& read) {
        if constexpr (V == kPack && sizeof(T) == 2) {
          std::uint32_t rounded[K * K][V / 2] = {};
#pragma unroll
          for (int tap = 0; tap < K * K; ++tap) {
            if ((read.inside >> tap & 1) == 0) continue;
            float x[V];
            read.x[tap].unpack(x);
#pragma unroll
            for (int i = 0; i < V / 2; ++i)
              rounded[tap][i] = Pairs<T>::relu(x[2 * i] * scale[2 * i] + shift[2 * i],
                                               x[2 * i + 1] * scale[2 * i + 1] + shift[2 * i + 1]);
          }
          store_largest<T>(rounded, row * packs + place.pack, a);
          return;
        }
        Key best[V] = {};
#pragma unroll
        for (int tap = 0; tap < K * K; ++tap) {
          if ((read.inside >> tap & 1) == 0) continue;
          float x[V];
          read.x[tap].unpack(x);
#pragma unroll
          for (int i = 0; i < V; ++i)
            best[i] = max(best[i], Keys<T>::of(relu.value(x[i] * scale[i] + shift[i]), tap));
        }
        Pack<T, V> y;
        Pack<std::uint8_t, V> places;
#pragma unroll
        for (int i = 0; i < V; ++i) {
          y.value[i] = Keys<T>::value(best[i]);
          places.value[i] = Keys<T>::place(best[i]);
        }
        const std::int64_t at = row * packs + place.pack;
        store(a.y, at, y);
        store(a.place, at, places);
      });
}

/// The windows around a square: the one that begins it, and with K = 3 its neighbours to the right,
/// below and across.
template <typename T, int V, int K>
struct Windows {
  static constexpr int kSide = K == 3 ? 2 : 1;
  Pack<T, V> grad[kSide * kSide];
  Pack<std::uint8_t, V> place[kSide * kSide];

  template <typename Args>
  __device__ static Windows fetch(const Args& a, const PixelOf& square, std::int64_t packs,
                                  std::int64_t pack) {
    const PoolShape& s = a.shape;
    Windows read;
#pragma unroll
    for (int w = 0; w < kSide * kSide; ++w) {
      const int y = square.y + w / kSide, x = square.x + w % kSide;
      if (y < s.out_height && x < s.out_width) {
        const std::int64_t at =
            ((square.sample * s.out_height + y) * s.out_width + x) * packs + pack;
        read.grad[w] = load<T, V>(a.grad_y, at);
        read.place[w] = load<std::uint8_t, V>(a.place, at);
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i) read.place[w].value[i] = kNoPlace;
      }
    }
    return read;
  }
  /// dz of one of the four pixels of the square.
  __device__ void dz(int pixel, float (&out)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = 0;
#pragma unroll
    for (int w = 0; w < kSide * kSide; ++w) {
      const int y = pixel / 2 + (K == 3 ? 1 : 0) - 2 * (w / kSide),
                x = pixel % 2 + (K == 3 ? 1 : 0) - 2 * (w % kSide);
      if (y < 0 || x < 0) continue;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (place[w].value[i] == y * K + x) out[i] += to_float(grad[w].value[i]);
      }
    }
  }
};

/// Where a pixel of a square lies, in packs; -1 outside.
__device__ inline std::int64_t pixel_place(const PoolShape& s, const PixelOf& square, int pixel) {
  const int y = 2 * square.y + pixel / 2, x = 2 * square.x + pixel % 2;
  return y < s.height && x < s.width ? (square.sample * s.height + y) * s.width + x : -1;
}

template <typename T, int V, int K>
__global__ void __launch_bounds__(kChannelThreads, 2)
    norm_max_pool_sums_kernel(const NormMaxPoolSums a, const ChannelShape shape) {
  struct Read {
    Windows<T, V, K> windows;
    Pack<T, V> x[4];
  };
  extern __shared__ float shared[];
  const PoolShape& s = a.shape;
  const std::int64_t packs = s.channels / V, down = (s.height + 1) / 2, across = (s.width + 1) / 2;
  const ChannelPlace place(shape, packs);
  float sum[2][V] = {};
  if (place.active) {
    float mean[V];
    load_channels<V>(a.mean, place.pack, 0, mean);
    for_rows<1>(
        shape, place, valid_samples(a.valid, s.samples) * down * across,
        [&](std::int64_t row) {
          const PixelOf square(row, down, across);
          Read read;
          read.windows = Windows<T, V, K>::fetch(a, square, packs, place.pack);
#pragma unroll
          for (int pixel = 0; pixel < 4; ++pixel) {
            // A pixel outside has no windows.
            const std::int64_t at = max(std::int64_t{0}, pixel_place(s, square, pixel));
            read.x[pixel] = load<T, V>(a.x, at * packs + place.pack);
          }
          return read;
        },
        [&](std::int64_t, const Read& read) {
#pragma unroll
          for (int pixel = 0; pixel < 4; ++pixel) {
            float x[V], dz[V];
            read.x[pixel].unpack(x);
            read.windows.dz(pixel, dz);
#pragma unroll
            for (int i = 0; i < V; ++i) {
              sum[0][i] += dz[i];
              sum[1][i] += dz[i] * (x[i] - mean[i]);
            }
          }
        });
  }
  store_block_sums<2, V>(sum, shape, place, s.channels, shared,
                         a.partial + static_cast<std::int64_t>(blockIdx.y) * 2 * s.channels);
}

/// kNorm: grad_x is that of a norm's input, else dz.
template <typename T, int V, int K, bool kNorm>
__global__ void __launch_bounds__(kChannelThreads, 2)
    norm_max_pool_backward_kernel(const NormMaxPoolBackward a, const ChannelShape shape) {
  struct Read {
    Windows<T, V, K> windows;
    Pack<T, V> x[kNorm ? 4 : 1];
  };
  extern __shared__ float shared[];
  const PoolShape& s = a.shape;
  const std::int64_t packs = s.channels / V, down = (s.height + 1) / 2, across = (s.width + 1) / 2;
  const ChannelPlace place(shape, packs);
  float sum[1][V] = {};
  if (place.active) {
    float mean[V], scale[V], slope[V], offset[V];
    if constexpr (kNorm) {
      load_channels<V>(a.mean, place.pack, 0, mean);
      load_channels<V>(a.scale, place.pack, 1, scale);
      load_channels<V>(a.slope, place.pack, 0, slope);
      load_channels<V>(a.offset, place.pack, 0, offset);
    }
    const std::int64_t valid = valid_samples(a.valid, s.samples);
    for_rows<kNorm || K == 3 || sizeof(T) == 4 ? 1 : 2>(
        shape, place, s.samples * down * across,
        [&](std::int64_t row) {
          const PixelOf square(row, down, across);
          Read read;
          read.windows = Windows<T, V, K>::fetch(a, square, packs, place.pack);
          if constexpr (kNorm) {
#pragma unroll
            for (int pixel = 0; pixel < 4; ++pixel) {
              const std::int64_t at = max(std::int64_t{0}, pixel_place(s, square, pixel));
              read.x[pixel] = load<T, V>(a.x, at * packs + place.pack);
            }
          }
          return read;
        },
        [&](std::int64_t row, const Read& read) {
          const PixelOf square(row, down, across);
          const bool counts = square.sample < valid;
#pragma unroll
          for (int pixel = 0; pixel < 4; ++pixel) {
            const std::int64_t at = pixel_place(s, square, pixel);
            if (at < 0) continue;
            float dx[V];
            read.windows.dz(pixel, dx);
            if constexpr (kNorm) {
              float x[V];
              read.x[pixel].unpack(x);
#pragma unroll
              for (int i = 0; i < V; ++i)
                dx[i] = scale[i] * dx[i] + ((x[i] - mean[i]) * slope[i] + offset[i]);
            }
#pragma unroll
            for (int i = 0; i < V; ++i) {
              if (!counts) dx[i] = 0;
              if constexpr (!kNorm) sum[0][i] += dx[i];
            }
            store(a.grad_x, at * packs + place.pack, Pack<T, V>::of(dx));
          }
        });
  }
  if (kNorm || a.grad_bias == nullptr) return;
  store_block_sums<1, V>(sum, shape, place, s.channels, shared,
                         a.partial + static_cast<std::int64_t>(blockIdx.y) * s.channels);
}

/// Launches kernel(T, V, K), which sums `numbers` per channel, over `rows`.
template <int kNumbers, typename Args, typename Kernel>
void launch_pool(const char* name, const Args& args, std::int64_t rows, const Kernel& kernel,
                 cudaStream_t stream) {
  const PoolShape& s = args.shape;
  if (!norm_pool_fits(s.kernel, s.stride, s.before) || rows >= std::int64_t{1} << 32)
    throw Error(ErrorKind::internal, std::string(name) + ": no kernel for these windows");
  if (rows == 0 || s.channels == 0) return;
  with_type(args.dtype, [&](auto zero) {
    with_channel_width(s.channels, [&](auto width) {
      constexpr int V = decltype(width)::value;
      const ChannelShape shape = channel_shape(s.channels / V);
      const dim3 grid(static_cast<unsigned>(shape.slabs),
                      static_cast<unsigned>(row_blocks(shape, rows)));
      const std::size_t bytes = block_sums_bytes<kNumbers, V>(shape);
      const auto threads = static_cast<unsigned>(shape.threads());
      if (s.kernel == 2) {
        kernel(zero, width, std::integral_constant<int, 2>{})<<<grid, threads, bytes, stream>>>(
            args, shape);
      } else {
        kernel(zero, width, std::integral_constant<int, 3>{})<<<grid, threads, bytes, stream>>>(
            args, shape);
      }
    });
  });
  check_launch(name);
}

}  // namespace

void norm_max_pool(const NormMaxPool& args, cudaStream_t stream) {
  const PoolShape& s = args.shape;
  launch_pool<0>(
      "norm_max_pool", args, s.samples * s.out_height * s.out_width,
      [](auto zero, auto width, auto side) {
        return norm_max_pool_kernel<decltype(zero), decltype(width)::value, decltype(side)::value>;
      },
      stream);
}

void norm_max_pool_sums(const NormMaxPoolSums& args, cudaStream_t stream) {
  launch_pool<2>(
      "norm_max_pool_sums", args, squares(args.shape),
      [](auto zero, auto width, auto side) {
        return norm_max_pool_sums_kernel<decltype(zero), decltype(width)::value,
                                         decltype(side)::value>;
      },
      stream);
}

void norm_max_pool_backward(const NormMaxPoolBackward& args, cudaStream_t stream) {
  const std::int64_t rows = squares(args.shape), channels = args.shape.channels;
  if (args.x != nullptr) {
    launch_pool<0>(
        "norm_max_pool_backward", args, rows,
        [](auto zero, auto width, auto side) {
          return norm_max_pool_backward_kernel<decltype(zero), decltype(width)::value,
                                               decltype(side)::value, true>;
        },
        stream);
    return;
  }
  launch_pool<1>(
      "norm_max_pool_backward", args, rows,
      [](auto zero, auto width, auto side) {
        return norm_max_pool_backward_kernel<decltype(zero), decltype(width)::value,
                                             decltype(side)::value, false>;
      },
      stream);
  if (args.grad_bias == nullptr || rows == 0) return;
  add_partials(args.partial, norm_pool_partials(args.shape), channels, args.grad_bias, nullptr,
               channels, stream);
}

}  // namespace cuda
}  // namespace dstrain::kernels
