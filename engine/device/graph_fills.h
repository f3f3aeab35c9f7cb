#pragma once

#include <cuda_runtime_api.h>

namespace dstrain {

/// Puts a kernel in the place of each small fill (cudaMemset) of a graph that is not yet
/// instantiated. Between two kernels a fill's own node costs 6 to 8 us on an H200, a kernel 2:
/// cuBLASLt and cuDNN set a counter to zero before many of theirs. Error of CUDA.
[[nodiscard]] cudaError_t replace_small_fills(cudaGraph_t graph);

}  // namespace dstrain
