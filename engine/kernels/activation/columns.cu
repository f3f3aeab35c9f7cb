#include <algorithm>
#include <type_traits>

#include "engine/kernels/activation/gelu.cuh"
#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/device.cuh"

/// Kernels that walk down columns: bias + GELU, scales of columns, and sums over rows for the
/// gradients of biases and scales. A thread owns a few columns, eight warps of a block share them
/// and take every eighth row, blockIdx.y divides the rows further.
namespace dstrain::kernels {
namespace {

constexpr int kWarps = 8;
constexpr std::int64_t kBlocks = 1056;  // about eight per SM of an H200

/// Elements of a thread: a pack, or one where rows are not aligned.
std::int64_t width(std::int64_t cols) { return cols % cuda::kPack == 0 ? cuda::kPack : 1; }
std::int64_t column_blocks(std::int64_t cols) {
  return cuda::blocks_for(cols, width(cols) * cuda::kWarp);
}

}  // namespace

std::int64_t column_partials(std::int64_t rows, std::int64_t cols) {
  const std::int64_t max = std::max<std::int64_t>(1, (rows + 4 * kWarps - 1) / (4 * kWarps));
  return std::clamp<std::int64_t>(kBlocks / std::max<std::int64_t>(1, column_blocks(cols)), 1, max);
}

namespace cuda {
namespace {

/// By the normal distribution: exact for fp32; for 16-bit types one exponential serves distribution
/// and density (Abramowitz & Stegun 7.1.26, error below 2e-7, far under their rounding), since GELU
/// is otherwise bound by arithmetic.
template <typename T>
__device__ Activated gelu_by_erf(float x) {
  constexpr float kPdf0 = 0.3989422804014327f, kSqrtHalf = 0.7071067811865475f;
  if constexpr (std::is_same_v<T, float>) {
    const float cdf = 0.5f * erfcf(-x * kSqrtHalf);
    return {x * cdf, cdf + x * kPdf0 * expf(-0.5f * x * x)};
  } else {
    const float exponential = exp2_of(-0.5f * kLog2E * x * x);
    const float t = reciprocal_of(fmaf(0.3275911f * kSqrtHalf, fabsf(x), 1.0f));
    const float series =
        t * (0.127414796f +
             t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f))));
    const float tail = series * exponential;  // of the distribution, beyond |x|
    return {fmaf(-fabsf(x), tail, fmaxf(x, 0.0f)),
            (x > 0 ? 1.0f - tail : tail) + x * kPdf0 * exponential};
  }
}

template <typename T>
__device__ Activated gelu_by_sigmoid(float x) {
  const float u = kQuickGelu * x;
  float share;
  if constexpr (std::is_same_v<T, float>) {
    share = 1.0f / (1.0f + expf(-u));
  } else {
    share = reciprocal_of(1.0f + exp2_of(-kLog2E * u));
  }
  return {x * share, share + u * share * (1.0f - share)};
}

template <typename T, Gelu kKind>
__device__ Activated gelu(float x) {
  if constexpr (kKind == Gelu::erf) {
    return gelu_by_erf<T>(x);
  } else if constexpr (kKind == Gelu::tanh) {
    return gelu_by_tanh<T>(x);
  } else {
    return gelu_by_sigmoid<T>(x);
  }
}

/// Blocks of a multiprocessor: as many as its threads allow, 1024 on 7.5, 1536 on 8.6, 8.9
/// and 12.x.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800)
constexpr int kGeluBlocks = 4;
#elif defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int kGeluBlocks = 6;
#else
constexpr int kGeluBlocks = 8;
#endif

template <typename T, int V, Gelu kKind>
__global__ void __launch_bounds__(kWarps* kWarp, kGeluBlocks) bias_gelu_kernel(const BiasGelu a) {
  const std::int64_t packs = a.cols / V;
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp;
  if (pack >= packs) return;
  float bias[V];
  load<T, V>(a.bias, pack).unpack(bias);
#pragma unroll 2
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kWarps + threadIdx.x / kWarp;
       row < a.rows; row += static_cast<std::int64_t>(gridDim.y) * kWarps) {
    float x[V];
    load<T, V>(a.z, row * packs + pack).unpack(x);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      x[i] = gelu<T, kKind>(x[i] + bias[i]).y;
    }
    store(a.y, row * packs + pack, Pack<T, V>::of(x));
  }
}

/// What a sum over rows runs over, and what it writes on the way.
template <typename T, int V>
struct PlainColumns {
  const void* x;
  __device__ PlainColumns(const ColumnSum& a, std::int64_t) : x(a.x) {}
  __device__ void operator()(std::int64_t index, float (&out)[V]) const {
    load<T, V>(x, index).unpack(out);
  }
};

template <typename T, int V, Gelu kKind>
struct GeluColumns {
  const void* z;
  const void* grad_y;
  void* grad_z;
  void* y;
  float bias[V];
  __device__ GeluColumns(const BiasGeluBackward& a, std::int64_t pack)
      : z(a.z), grad_y(a.grad_y), grad_z(a.grad_z), y(a.y) {
    load<T, V>(a.bias, pack).unpack(bias);
  }
  __device__ void operator()(std::int64_t index, float (&out)[V]) const {
    float x[V];
    load<T, V>(z, index).unpack(x);
    load<T, V>(grad_y, index).unpack(out);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Activated made = gelu<T, kKind>(x[i] + bias[i]);
      out[i] *= made.slope;
      x[i] = made.y;
    }
    store(grad_z, index, Pack<T, V>::of(out));
    if (y != nullptr) store(y, index, Pack<T, V>::of(x));
  }
};

template <typename T, int V>
__global__ void __launch_bounds__(kWarps* kWarp) column_scale_kernel(const ColumnScale a) {
  const std::int64_t packs = a.cols / V;
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp;
  if (pack >= packs) return;
  float scale[V];
  load<T, V>(a.scale, pack).unpack(scale);
#pragma unroll 4
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kWarps + threadIdx.x / kWarp;
       row < a.rows; row += static_cast<std::int64_t>(gridDim.y) * kWarps) {
    float x[V];
    load<T, V>(a.x, row * packs + pack).unpack(x);
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] *= scale[i];
    store(a.y, row * packs + pack, Pack<T, V>::of(x));
  }
}

template <typename T, int V>
struct ScaledColumns {
  const void* x;
  const void* grad_y;
  void* grad_x;
  float scale[V];
  __device__ ScaledColumns(const ColumnScaleBackward& a, std::int64_t pack)
      : x(a.x), grad_y(a.grad_y), grad_x(a.grad_x) {
    load<T, V>(a.scale, pack).unpack(scale);
  }
  __device__ void operator()(std::int64_t index, float (&out)[V]) const {
    float grad[V];
    load<T, V>(x, index).unpack(out);
    load<T, V>(grad_y, index).unpack(grad);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      out[i] *= grad[i];
      grad[i] *= scale[i];
    }
    store(grad_x, index, Pack<T, V>::of(grad));
  }
};

template <int V, typename Columns, typename Args>
__global__ void __launch_bounds__(kWarps* kWarp) column_sum_kernel(const Args a) {
  __shared__ float warps[kWarps][kWarp * V];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t packs = a.cols / V;
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  float total[V] = {};
  if (pack < packs) {
    const Columns columns(a, pack);
#pragma unroll 4
    for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kWarps + warp; row < a.rows;
         row += static_cast<std::int64_t>(gridDim.y) * kWarps) {
      float value[V];
      columns(row * packs + pack, value);
#pragma unroll
      for (int i = 0; i < V; ++i) total[i] += value[i];
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) warps[warp][lane * V + i] = total[i];
  __syncthreads();
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp * V + threadIdx.x;
  if (static_cast<int>(threadIdx.x) < kWarp * V && column < a.cols && a.partial != nullptr) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += warps[w][threadIdx.x];
    a.partial[static_cast<std::int64_t>(blockIdx.y) * a.cols + column] = sum;
  }
}

constexpr int kReduceRows = 32;

__global__ void __launch_bounds__(kWarp* kReduceRows)
    add_partials_kernel(const float* partial, std::int64_t rows, std::int64_t cols, float* first,
                        float* second, std::int64_t split) {
  __shared__ float sums[kReduceRows][kWarp + 1];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (column < cols) {
    for (std::int64_t row = threadIdx.y; row < rows; row += kReduceRows)
      sum += partial[row * cols + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < cols) {
    for (int y = 1; y < kReduceRows; ++y) sum += sums[y][threadIdx.x];
    float& out = column < split ? first[column] : second[column - split];
    out += sum;
  }
}

/// The same, bit for bit, of few rows: a thread has a column.
__global__ void __launch_bounds__(kReduceRows* kWarp)
    add_few_partials_kernel(const float* partial, std::int64_t rows, std::int64_t cols,
                            float* first, float* second, std::int64_t split) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= cols) return;
  float sum = partial[column];
#pragma unroll 4
  for (std::int64_t row = 1; row < rows; ++row) sum += partial[row * cols + column];
  float& out = column < split ? first[column] : second[column - split];
  out += sum;
}

template <typename Args>
dim3 column_grid(const Args& args) {
  return {static_cast<unsigned>(column_blocks(args.cols)),
          static_cast<unsigned>(column_partials(args.rows, args.cols))};
}

}  // namespace

void add_partials(const float* partial, std::int64_t rows, std::int64_t cols, float* first,
                  float* second, std::int64_t split, cudaStream_t stream) {
  constexpr int kFewThreads = 256;
  constexpr std::int64_t kManyColumns = 16 * 1024;  // fewer leave multiprocessors idle
  if (rows <= kReduceRows && cols >= kManyColumns) {
    add_few_partials_kernel<<<blocks_for(cols, kFewThreads), kFewThreads, 0, stream>>>(
        partial, rows, cols, first, second, split);
  } else {
    add_partials_kernel<<<blocks_for(cols, kWarp), dim3(kWarp, kReduceRows), 0, stream>>>(
        partial, rows, cols, first, second, split);
  }
  check_launch("add_partials");
}

namespace {

/// A kernel of columns, `kernel(zero of the type, elements of a thread)`.
template <typename Args, typename Kernel>
void launch_columns(const char* name, const Args& args, const Kernel& kernel, cudaStream_t stream) {
  with_type(args.dtype, [&](auto zero) {
    const auto chosen = width(args.cols) == kPack
                            ? kernel(zero, std::integral_constant<int, kPack>{})
                            : kernel(zero, std::integral_constant<int, 1>{});
    chosen<<<column_grid(args), kWarps * kWarp, 0, stream>>>(args);
  });
  check_launch(name);
}

template <Gelu kKind>
void launch_bias_gelu(const BiasGelu& args, cudaStream_t stream) {
  const auto kernel = [](auto zero, auto elements) {
    return &bias_gelu_kernel<decltype(zero), decltype(elements)::value, kKind>;
  };
  launch_columns("bias_gelu", args, kernel, stream);
}

template <Gelu kKind>
void launch_bias_gelu_backward(const BiasGeluBackward& args, cudaStream_t stream) {
  const auto kernel = [](auto zero, auto elements) {
    constexpr int kElements = decltype(elements)::value;
    return &column_sum_kernel<kElements, GeluColumns<decltype(zero), kElements, kKind>,
                              BiasGeluBackward>;
  };
  launch_columns("bias_gelu_backward", args, kernel, stream);
}

}  // namespace

void bias_gelu(const BiasGelu& args, cudaStream_t stream) {
  if (args.rows == 0 || args.cols == 0) return;
  const auto launch = args.kind == Gelu::erf    ? launch_bias_gelu<Gelu::erf>
                      : args.kind == Gelu::tanh ? launch_bias_gelu<Gelu::tanh>
                                                : launch_bias_gelu<Gelu::quick>;
  launch(args, stream);
}

void bias_gelu_backward(const BiasGeluBackward& args, cudaStream_t stream) {
  if (args.rows == 0 || args.cols == 0) return;
  const auto launch = args.kind == Gelu::erf    ? launch_bias_gelu_backward<Gelu::erf>
                      : args.kind == Gelu::tanh ? launch_bias_gelu_backward<Gelu::tanh>
                                                : launch_bias_gelu_backward<Gelu::quick>;
  launch(args, stream);
  if (args.grad_bias == nullptr) return;
  add_partials(args.partial, column_partials(args.rows, args.cols), args.cols, args.grad_bias,
               nullptr, args.cols, stream);
}

void column_scale(const ColumnScale& args, cudaStream_t stream) {
  if (args.rows == 0 || args.cols == 0) return;
  const auto kernel = [](auto zero, auto elements) {
    return &column_scale_kernel<decltype(zero), decltype(elements)::value>;
  };
  launch_columns("column_scale", args, kernel, stream);
}

void column_scale_backward(const ColumnScaleBackward& args, cudaStream_t stream) {
  if (args.rows == 0 || args.cols == 0) return;
  const auto kernel = [](auto zero, auto elements) {
    constexpr int kElements = decltype(elements)::value;
    return &column_sum_kernel<kElements, ScaledColumns<decltype(zero), kElements>,
                              ColumnScaleBackward>;
  };
  launch_columns("column_scale_backward", args, kernel, stream);
  add_partials(args.partial, column_partials(args.rows, args.cols), args.cols, args.grad_scale,
               nullptr, args.cols, stream);
}

void column_sum(const ColumnSum& args, cudaStream_t stream) {
  if (args.rows == 0 || args.cols == 0) return;
  const auto kernel = [](auto zero, auto elements) {
    constexpr int kElements = decltype(elements)::value;
    return &column_sum_kernel<kElements, PlainColumns<decltype(zero), kElements>, ColumnSum>;
  };
  launch_columns("column_sum", args, kernel, stream);
  add_partials(args.partial, column_partials(args.rows, args.cols), args.cols, args.sum, nullptr,
               args.cols, stream);
}

void partial_sums(const PartialSums& args, cudaStream_t stream) {
  if (args.rows == 0 || args.cols == 0) return;
  add_partials(args.partial, args.rows, args.cols, args.sum, nullptr, args.cols, stream);
}

}  // namespace cuda
}  // namespace dstrain::kernels
