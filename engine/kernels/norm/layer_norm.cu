#include <algorithm>

#include "engine/kernels/norm/kernels.h"
#include "engine/kernels/norm/norm.cuh"

namespace dstrain::kernels {

std::int64_t norm_partials(std::int64_t rows) {
  return std::min(cuda::kNormBlocks,
                  std::max<std::int64_t>(1, (rows + cuda::kNormWarps - 1) / cuda::kNormWarps));
}

std::int64_t norm_maxima(std::int64_t rows, std::int64_t dim) {
  std::int64_t warps_of_row = 0;
  const std::int64_t packed = (dim + cuda::kPack - 1) / cuda::kPack * cuda::kPack;
  cuda::with_row_shape("norm", rows, packed, [&](auto, auto warps) { warps_of_row = warps; });
  return rows * warps_of_row;
}

std::size_t norm_backward_bytes(std::int64_t dim, DType dtype, bool staged) {
  std::size_t bytes = 0;
  cuda::with_type(dtype, [&](auto zero) {
    cuda::with_backward_shape("norm", dim, [&](auto packs, auto) {
      using T = decltype(zero);
      constexpr int N = decltype(packs)::value;
      bytes = staged ? cuda::NormStaging<T, N>::kBytes : cuda::NormHeld<T, N>::kBytes;
    });
  });
  return bytes;
}

namespace cuda {

void add_layer_norm(const AddLayerNorm& args, cudaStream_t stream) {
  launch_norm("add_layer_norm", args, stream);
}

void add_layer_norm_backward(const AddLayerNormBackward& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const std::int64_t blocks = launch_norm_backward("add_layer_norm_backward", args, stream);
  if (args.grad_weight == nullptr) return;
  add_partials(args.partial, blocks, 2 * args.dim, args.grad_weight, args.grad_bias, args.dim,
               stream);
}

}  // namespace cuda
}  // namespace dstrain::kernels
