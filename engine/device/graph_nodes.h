#pragma once

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace dstrain {

/// All nodes of a graph, or of what a capture holds so far.
inline std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
  std::size_t count = 0;
  C10_CUDA_CHECK(::cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  C10_CUDA_CHECK(::cudaGraphGetNodes(graph, nodes.data(), &count));
  return nodes;
}

}  // namespace dstrain
