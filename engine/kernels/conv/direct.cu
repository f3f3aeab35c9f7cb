#include <algorithm>

#include "engine/kernels/conv/direct_kernel.h"
#include "engine/kernels/copy_async.cuh"
#include "engine/kernels/device.cuh"
#include "engine/kernels/gpu.h"
#include "engine/kernels/tensor_cores.cuh"

/// A block walks over tiles: a few rows of the output and up to 128 of its columns. The lines of
/// the image that a tile needs lie in shared memory with their zeros; operands of the tensor cores
/// are pairs of neighbours in them. A line here is a channel's row under one row of the kernel, so
/// a window has 3 * K of them, each of K elements and as many zeros of weight as fill up J.
namespace dstrain::kernels {
namespace {

constexpr int kMaxColumns = kDirectColumns;  // of a tile
constexpr int kFragment = 16;                // pixels of one operand of the tensor cores
constexpr int kForwardRows = 4, kBackwardRows = 2;
constexpr std::int64_t kBlocks = 2 * 132;  // two on each multiprocessor of an H100 or H200

/// How the output is cut; the same for every sample.
struct Tiles {
  int columns;  // of a tile, a multiple of kFragment
  int across, down;
  std::int64_t all;
};

Tiles tiles_of(std::int64_t samples, int out_height, int out_width, int rows,
               int max = kMaxColumns) {
  const int across = (out_width + max - 1) / max, share = (out_width + across - 1) / across,
            down = (out_height + rows - 1) / rows;
  return {.columns = (share + kFragment - 1) / kFragment * kFragment,
          .across = across,
          .down = down,
          .all = samples * across * down};
}
Tiles tiles_of(const DirectShape& s, int rows, int max = kMaxColumns) {
  return tiles_of(s.samples, s.out_height, s.out_width, rows, max);
}

}  // namespace

std::int64_t direct_partials(std::int64_t samples, int out_height, int out_width) {
  return std::min(kBlocks, tiles_of(samples, out_height, out_width, kBackwardRows).all);
}

namespace cuda {
namespace {

constexpr int kWarps = 7, kThreads = kWarps * kWarp;

/// An image of three channels under kernels of K x K and a stride of S.
template <int K, int S>
struct Window {
  static constexpr int kTaps = K == 7 ? 8 : 4;  // J
  static constexpr int kLines = kDirectChannels * K;
  static constexpr int kDepth = (kLines * kTaps + 15) / 16 * 16;  // of the product
  static constexpr int image_rows(int rows) { return (rows - 1) * S + K; }
};

struct Tile {
  std::int64_t sample;
  int top, left;  // in the output

  __device__ Tile(std::uint32_t index, const Tiles& tiles, int rows) {
    const auto across = static_cast<std::uint32_t>(tiles.across),
               down = static_cast<std::uint32_t>(tiles.down);
    left = static_cast<int>(index % across) * tiles.columns;
    index /= across;
    top = static_cast<int>(index % down) * rows;
    sample = index / down;
  }
};

/// Calls put(line, x, bits) for the first `width` elements of each line of a tile that has `rows`
/// rows: those of the image, or zero outside. A warp has a line at a time.
template <int K, int S, int kRows, int kMaxWidth, typename Put>
__device__ void read_lines(const void* x, const DirectShape& s, const Tile& tile, int width,
                           const Put& put) {
  constexpr int kImageRows = Window<K, S>::image_rows(kRows);
  const auto* image = static_cast<const std::uint16_t*>(x) + tile.sample * s.sample_stride;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = tile.left * S - s.before;
#pragma unroll 2
  for (int line = warp; line < kDirectChannels * kImageRows; line += kWarps) {
    const int y = tile.top * S - s.before + line % kImageRows;
    const std::uint16_t* from = image + line / kImageRows * s.channel_stride + y * s.row_stride;
    const bool row_inside = y >= 0 && y < s.height;
    std::uint16_t bits[(kMaxWidth + kWarp - 1) / kWarp];
#pragma unroll
    for (int i = 0; i < (kMaxWidth + kWarp - 1) / kWarp; ++i) {
      const int column = first + lane + i * kWarp;
      bits[i] = row_inside && column >= 0 && column < s.width && lane + i * kWarp < width
                    ? from[column * s.column_stride]
                    : std::uint16_t{0};
    }
#pragma unroll
    for (int i = 0; i < (kMaxWidth + kWarp - 1) / kWarp; ++i) {
      if (lane + i * kWarp < width) put(line, lane + i * kWarp, bits[i]);
    }
  }
}

/// Where line `line` of a window begins among the lines of a tile, counted in lines; beyond the
/// last one the first, whose weights are zero.
template <int K, int kImageRows>
__device__ constexpr int line_place(int line) {
  return line < kDirectChannels * K ? line / K * kImageRows + line % K : 0;
}

/// Rows of an operand are pixels, its depth the elements of the window. N: eighths of the output's
/// channels. The order of the weight's rows is such that a thread gets 2 N neighbouring channels.
template <typename T, int K, int S, int N>
__global__ void __launch_bounds__(kThreads, 2)
    direct_kernel(const DirectConv a, const Tiles tiles) {
  using W = Window<K, S>;
  constexpr int kImageRows = W::image_rows(kForwardRows), kTaps = W::kTaps;
  // Pairs begin at even places: with a stride of 1 there is a copy that is shifted by one.
  constexpr int kCopies = S == 1 ? 2 : 1, kPitch = ((kMaxColumns - 1) * S + kTaps + 7) / 8 * 8,
                kLine = kCopies * kPitch;
  constexpr int kWeightPitch = W::kDepth + 8;  // so that threads read other banks
  __shared__ alignas(16) std::uint16_t lines[kDirectChannels * kImageRows * kLine];
  __shared__ alignas(16) std::uint16_t weights[N * 8 * kWeightPitch];
  __shared__ float biases[N * 8];
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  for (int i = static_cast<int>(threadIdx.x); i < N * 8 * W::kDepth; i += kThreads) {
    const int row = i / W::kDepth, depth = i % W::kDepth, line = depth / kTaps, tap = depth % kTaps;
    const int channel = row % 8 / 2 * (2 * N) + row / 8 * 2 + row % 2;
    weights[row * kWeightPitch + depth] =
        line < W::kLines && tap < K
            ? static_cast<const std::uint16_t*>(a.weight)[(channel * W::kLines + line) * K + tap]
            : std::uint16_t{0};
  }
  for (int i = static_cast<int>(threadIdx.x); i < N * 8; i += kThreads)
    biases[i] = a.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(a.bias)[i]);
  const int per_row = tiles.columns / kFragment, fragments = kForwardRows * per_row;
  for (std::uint32_t index = blockIdx.x; index < tiles.all; index += gridDim.x) {
    const Tile tile(index, tiles, kForwardRows);
    __syncthreads();
    const int width = (tiles.columns - 1) * S + kTaps;
    read_lines<K, S, kForwardRows, kPitch>(a.x, a.shape, tile, width,
                                           [&](int line, int x, std::uint16_t bits) {
                                             lines[line * kLine + x] = bits;
                                             if (kCopies == 2 && x > 0)
                                               lines[line * kLine + kPitch + x - 1] = bits;
                                           });
    __syncthreads();
    for (int first = 2 * warp; first < fragments; first += 2 * kWarps) {
      float sum[2][N][4] = {};
      const std::uint16_t* from[2];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int fragment = min(first + m, fragments - 1), row = fragment / per_row,
                  column = fragment % per_row * kFragment + g;
        from[m] = lines + row * S * kLine +
                  (S == 1 ? column % 2 * kPitch + column / 2 * 2 : column * S) + 2 * t % kTaps;
      }
#pragma unroll
      for (int depth = 0; depth < W::kDepth; depth += 16) {
        Left pixels[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int line = (depth + 8 * half) / kTaps;
          int place = line_place<K, kImageRows>(line) * kLine;
          if (kTaps == 4 && t >= 2) place = line_place<K, kImageRows>(line + 1) * kLine;
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            pixels[m].value[2 * half] = pair_at(from[m] + place);
            pixels[m].value[2 * half + 1] = pair_at(from[m] + place + 8 * S);
          }
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const std::uint16_t* row = weights + (n * 8 + g) * kWeightPitch + depth + 2 * t;
          const RightHalf weight{{pair_at(row), pair_at(row + 8)}};
#pragma unroll
          for (int m = 0; m < 2; ++m) multiply_add<T>(sum[m][n], pixels[m], weight);
        }
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int fragment = first + m;
        if (fragment >= fragments) continue;
        const int row = tile.top + fragment / per_row;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int in_tile = fragment % per_row * kFragment + g + 8 * half,
                    column = tile.left + in_tile;
          if (row >= a.shape.out_height || column >= a.shape.out_width) continue;
          float y[2 * N];
#pragma unroll
          for (int i = 0; i < 2 * N; ++i) {
            y[i] = sum[m][i / 2][2 * half + i % 2];
            if (a.bias != nullptr) y[i] = to_float(from_float<T>(y[i])) + biases[t * 2 * N + i];
            if (a.relu) y[i] = y[i] < 0 ? 0 : y[i];  // nan stays
          }
          const std::int64_t pixel =
              (tile.sample * a.shape.out_height + row) * a.shape.out_width + column;
          store(a.y, pixel * 4 + t, Pack<T, 2 * N>::of(y));
        }
      }
    }
  }
}

template <int K, int S, int kOut>
struct Backward {
  using W = Window<K, S>;
  static constexpr int kImageRows = W::image_rows(kBackwardRows);
  /// A line: columns of each phase of the stride, and the same shifted by one, so that pairs of
  /// pixels begin at even places; 8 banks apart.
  static constexpr int kArray = kMaxColumns + 16, kLine = 2 * S * kArray;
  static constexpr int kLines = kDirectChannels * kImageRows * kLine;
  static constexpr int kGradPitch = kOut + 8;
  /// Lines, and the gradients of a tile of so many columns.
  static constexpr std::size_t bytes(int columns) {
    return sizeof(std::uint16_t) *
           (kLines + static_cast<std::size_t>(kBackwardRows * columns * kGradPitch));
  }
  /// Eights of elements of windows; warps share them, or else the pixels.
  static constexpr int kEights = (W::kLines * W::kTaps + 7) / 8;
  static constexpr bool kSharePixels = kEights % kWarps != 0;
  static constexpr int kOwn = kSharePixels ? kEights : kEights / kWarps;
  static constexpr int kWindow = W::kLines * K;
  static_assert(bytes(kNarrowDirectColumns) <= kMinSharedBlock);
  static_assert(!kSharePixels || sizeof(float) * kOut * kEights * 8 <= bytes(kNarrowDirectColumns));
};

/// Rows of the product are output channels, its columns elements of the window, its depth pixels.
template <typename T, int K, int S, int kOut>
__global__ void __launch_bounds__(kThreads, 2)
    direct_backward_kernel(const DirectConvBackward a, const Tiles tiles) {
  using W = Window<K, S>;
  using B = Backward<K, S, kOut>;
  constexpr int kTaps = W::kTaps, kRowsOfSixteen = kOut / 16, kChunks = kOut / 8;
  extern __shared__ float4 room[];
  auto* lines = reinterpret_cast<std::uint16_t*>(room);
  std::uint16_t* grads = lines + B::kLines;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  // The element of the window that this thread loads in each eight, and where its pairs lie.
  int place[B::kOwn];
#pragma unroll
  for (int n = 0; n < B::kOwn; ++n) {
    const int element = ((B::kSharePixels ? 0 : warp * B::kOwn) + n) * 8 + g, tap = element % kTaps,
              shift = tap / S % 2;
    place[n] = line_place<K, B::kImageRows>(element / kTaps) * B::kLine +
               (tap % S * 2 + shift) * B::kArray + tap / S - shift + 2 * t;
  }
  const int grad_place = (lane % 8 + lane / 16 * 8) * B::kGradPitch + lane / 8 % 2 * 8;
  const int per_row = tiles.columns / kFragment, fragments = kBackwardRows * per_row;
  float sum[kRowsOfSixteen][B::kOwn][4] = {};
  for (std::uint32_t index = blockIdx.x; index < tiles.all; index += gridDim.x) {
    const Tile tile(index, tiles, kBackwardRows);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kBackwardRows * tiles.columns * kChunks;
         i += kThreads) {
      const int pixel = i / kChunks, row = pixel >= tiles.columns ? 1 : 0, y = tile.top + row,
                x = tile.left + pixel - row * tiles.columns;
      const bool inside = y < a.shape.out_height && x < a.shape.out_width;
      const std::int64_t from =
          inside ? (tile.sample * a.shape.out_height + y) * a.shape.out_width + x : 0;
      copy_async(grads + pixel * B::kGradPitch + i % kChunks * 8,
                 static_cast<const uint4*>(a.grad_y) + from * kChunks + i % kChunks, inside);
    }
    read_lines<K, S, kBackwardRows, (kMaxColumns + 4) * S>(
        a.x, a.shape, tile, (tiles.columns + 4) * S, [&](int line, int x, std::uint16_t bits) {
          std::uint16_t* to = lines + line * B::kLine + x % S * 2 * B::kArray + x / S;
          to[0] = bits;
          if (x >= S) to[B::kArray - 1] = bits;
        });
    end_copies();
    wait_for_copies<0>();
    __syncthreads();
    for (int fragment = B::kSharePixels ? warp : 0; fragment < fragments;
         fragment += B::kSharePixels ? kWarps : 1) {
      const int row = fragment >= per_row ? 1 : 0;
      const std::uint16_t* from =
          lines + row * S * B::kLine + (fragment - row * per_row) * kFragment;
      const std::uint16_t* grad = grads + fragment * kFragment * B::kGradPitch + grad_place;
      Left channels[kRowsOfSixteen];
#pragma unroll
      for (int m = 0; m < kRowsOfSixteen; ++m)
        load_matrices<true>(channels[m].value, shared_address(grad + m * 16));
#pragma unroll
      for (int n = 0; n < B::kOwn; ++n) {
        const RightHalf pixels{{pair_at(from + place[n]), pair_at(from + place[n] + 8)}};
#pragma unroll
        for (int m = 0; m < kRowsOfSixteen; ++m) multiply_add<T>(sum[m][n], channels[m], pixels);
      }
    }
  }
  float* partial = a.partial + static_cast<std::int64_t>(blockIdx.x) * kOut * B::kWindow;
  // Calls use(channel, element of the window with zeros, number) for the sums of this thread.
  const auto for_sums = [&](const auto& use) {
#pragma unroll
    for (int m = 0; m < kRowsOfSixteen; ++m) {
#pragma unroll
      for (int n = 0; n < B::kOwn; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          use(m * 16 + g + i / 2 * 8,
              ((B::kSharePixels ? 0 : warp * B::kOwn) + n) * 8 + 2 * t + i % 2, sum[m][n][i]);
      }
    }
  };
  const auto write = [&](int channel, int element, float number) {
    const int line = element / kTaps, tap = element % kTaps;
    if (line < W::kLines && tap < K) partial[channel * B::kWindow + line * K + tap] = number;
  };
  if constexpr (!B::kSharePixels) {
    for_sums(write);
  } else {
    auto* all = reinterpret_cast<float*>(room);
    for (int each = 0; each < kWarps; ++each) {
      __syncthreads();
      if (each != warp) continue;
      for_sums([&](int channel, int element, float number) {
        float& to = all[channel * B::kEights * 8 + element];
        to = each == 0 ? number : to + number;
      });
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kOut * B::kEights * 8; i += kThreads)
      write(i / (B::kEights * 8), i % (B::kEights * 8), all[i]);
  }
}

/// Calls body(T, K, S, N) with the shape as constants, N eighths of the output's channels.
template <typename Body>
void with_shape(const DirectShape& s, DType dtype, const Body& body) {
  if (!direct_fits(kDirectChannels, s.out, s.kernel, s.stride) || dtype == DType::f32)
    throw Error(ErrorKind::internal, "no direct convolution of this shape");
  const auto of_type = [&](auto zero) {
    if (s.kernel == 7) {
      body(zero, std::integral_constant<int, 7>{}, std::integral_constant<int, 2>{},
           std::integral_constant<int, 8>{});
    } else if (s.stride == 1) {
      body(zero, std::integral_constant<int, 3>{}, std::integral_constant<int, 1>{},
           std::integral_constant<int, 8>{});
    } else {
      body(zero, std::integral_constant<int, 3>{}, std::integral_constant<int, 2>{},
           std::integral_constant<int, 4>{});
    }
  };
  dtype == DType::f16 ? of_type(__half{}) : of_type(__nv_bfloat16{});
}

}  // namespace

void direct_conv(const DirectConv& args, cudaStream_t stream) {
  check_products("direct_conv", args.dtype);
  const Tiles tiles = tiles_of(args.shape, kForwardRows);
  if (tiles.all == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(kBlocks, tiles.all));
  with_shape(args.shape, args.dtype, [&](auto zero, auto kernel, auto step, auto eights) {
    direct_kernel<decltype(zero), decltype(kernel)::value, decltype(step)::value,
                  decltype(eights)::value><<<blocks, kThreads, 0, stream>>>(args, tiles);
  });
  check_launch("direct_conv");
}

void direct_conv_backward(const DirectConvBackward& args, cudaStream_t stream) {
  check_products("direct_conv_backward", args.dtype);
  const DirectShape& s = args.shape;
  const std::int64_t blocks = direct_partials(s.samples, s.out_height, s.out_width);
  if (blocks == 0) return;
  const int columns = direct_backward_columns(s, gpu_limits());
  const Tiles tiles = tiles_of(s, kBackwardRows, columns);
  with_shape(s, args.dtype, [&](auto zero, auto kernel, auto step, auto eights) {
    constexpr int K = decltype(kernel)::value, S = decltype(step)::value,
                  kOut = decltype(eights)::value * 8;
    constexpr auto run = direct_backward_kernel<decltype(zero), K, S, kOut>;
    const std::size_t bytes = Backward<K, S, kOut>::bytes(columns);
    allow_shared(run, "direct_conv_backward", bytes);
    run<<<static_cast<unsigned>(blocks), kThreads, bytes, stream>>>(args, tiles);
  });
  check_launch("direct_conv_backward");
  const std::int64_t numbers =
      std::int64_t{args.shape.out} * kDirectChannels * args.shape.kernel * args.shape.kernel;
  add_partials(args.partial, blocks, numbers, args.grad_weight, nullptr, numbers, stream);
}

}  // namespace cuda

std::size_t direct_backward_bytes(const DirectShape& shape, int columns) {
  std::size_t bytes = 0;
  cuda::with_shape(shape, DType::f16, [&](auto, auto kernel, auto step, auto eights) {
    bytes = cuda::Backward<decltype(kernel)::value, decltype(step)::value,
                           decltype(eights)::value * 8>::bytes(columns);
  });
  return bytes;
}

int direct_backward_columns(const DirectShape& shape, const GpuLimits& limits) {
  return direct_backward_bytes(shape, kDirectColumns) <= limits.shared_block ? kDirectColumns
                                                                             : kNarrowDirectColumns;
}

}  // namespace dstrain::kernels
