#include "engine/kernels/norm/kernels.h"
#include "engine/kernels/norm/norm.cuh"

namespace dstrain::kernels::cuda {

void add_rms_norm(const AddRmsNorm& args, cudaStream_t stream) {
  launch_norm("add_rms_norm", args, stream);
}

void add_rms_norm_backward(const AddRmsNormBackward& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const std::int64_t blocks = launch_norm_backward("add_rms_norm_backward", args, stream);
  if (args.grad_weight == nullptr) return;
  add_partials(args.partial, blocks, args.dim, args.grad_weight, nullptr, args.dim, stream);
}

}  // namespace dstrain::kernels::cuda
