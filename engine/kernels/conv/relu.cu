#include "engine/kernels/batch_norm/channels.cuh"
#include "engine/kernels/conv/relu_kernel.h"

namespace dstrain::kernels {

std::int64_t bias_relu_partials(std::int64_t rows, std::int64_t channels) {
  return cuda::row_blocks(cuda::channel_shape(channels / cuda::channel_width(channels)), rows);
}

namespace cuda {
namespace {

template <typename T>
inline constexpr int kReluRows = sizeof(T) == 2 ? kChannelUnroll : 2;

template <typename T, int V>
__global__ void __launch_bounds__(kChannelThreads, 2)
    bias_relu_backward_kernel(const BiasReluBackward a, const ChannelShape shape) {
  struct Read {
    Pack<T, V> y, grad;
  };
  extern __shared__ float shared[];
  const std::int64_t packs = a.channels / V;
  const ChannelPlace place(shape, packs);
  float sum[1][V] = {};
  if (place.active) {
    for_rows<kReluRows<T>>(
        shape, place, a.rows,
        [&](std::int64_t row) {
          const std::int64_t at = row * packs + place.pack;
          return Read{load<T, V>(a.y, at), load<T, V>(a.grad_y, at)};
        },
        [&](std::int64_t row, const Read& read) {
          float y[V], grad[V];
          read.y.unpack(y);
          read.grad.unpack(grad);
#pragma unroll
          for (int i = 0; i < V; ++i) {
            if (y[i] <= 0) grad[i] = 0;
            sum[0][i] += grad[i];
          }
          store(a.grad_z, row * packs + place.pack, Pack<T, V>::of(grad));
        });
  }
  if (a.grad_bias == nullptr) return;
  store_block_sums<1, V>(sum, shape, place, a.channels, shared,
                         a.partial + static_cast<std::int64_t>(blockIdx.y) * a.channels);
}

}  // namespace

void bias_relu_backward(const BiasReluBackward& args, cudaStream_t stream) {
  if (args.rows == 0 || args.channels == 0) return;
  with_type(args.dtype, [&](auto zero) {
    with_channel_width(args.channels, [&](auto width) {
      constexpr int V = decltype(width)::value;
      const ChannelShape shape = channel_shape(args.channels / V);
      const dim3 grid(static_cast<unsigned>(shape.slabs),
                      static_cast<unsigned>(row_blocks(shape, args.rows)));
      bias_relu_backward_kernel<decltype(zero), V>
          <<<grid, static_cast<unsigned>(shape.threads()), block_sums_bytes<1, V>(shape), stream>>>(
              args, shape);
    });
  });
  check_launch("bias_relu_backward");
  if (args.grad_bias == nullptr) return;
  add_partials(args.partial, bias_relu_partials(args.rows, args.channels), args.channels,
               args.grad_bias, nullptr, args.channels, stream);
}

}  // namespace cuda
}  // namespace dstrain::kernels
