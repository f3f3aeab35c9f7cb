#pragma once

#include <cuda_runtime_api.h>

#include "engine/kernels/loss/kernels.h"

namespace dstrain::kernels::cuda {

/// vocab_loss by clusters of blocks (compute capability 9.0), for 16-bit logits of 65,536 to
/// 262,144 classes; false, and nothing is launched, for others.
[[nodiscard]] bool vocab_loss_cluster(const VocabLoss& args, cudaStream_t stream);

}  // namespace dstrain::kernels::cuda
