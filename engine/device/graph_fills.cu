#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/device/graph_fills.h"

namespace dstrain {
namespace {

/// What one block fills in no time.
constexpr std::size_t kMaxBytes = 16 << 10;

template <class T>
__global__ void __launch_bounds__(256) fill_kernel(T* to, T value, std::size_t count) {
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = value;
}

template <class T>
cudaError_t add_fill(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& before,
                     const cudaMemsetParams& fill, cudaGraphNode_t& node) {
  auto* to = static_cast<T*>(fill.dst);
  T value = static_cast<T>(fill.value);
  std::size_t count = fill.width;
  std::array<void*, 3> arguments = {&to, &value, &count};
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(&fill_kernel<T>);
  kernel.gridDim = dim3(1);
  kernel.blockDim = dim3(count <= 32 ? 32 : 256);
  kernel.kernelParams = arguments.data();
  return cudaGraphAddKernelNode(&node, graph, before.data(), before.size(), &kernel);
}

cudaError_t add_fill(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& before,
                     const cudaMemsetParams& fill, cudaGraphNode_t& node) {
  switch (fill.elementSize) {
    case 1:
      return add_fill<std::uint8_t>(graph, before, fill, node);
    case 2:
      return add_fill<std::uint16_t>(graph, before, fill, node);
    default:
      return add_fill<std::uint32_t>(graph, before, fill, node);
  }
}

/// `get`: cudaGraphNodeGetDependencies or cudaGraphNodeGetDependentNodes.
template <class Get>
cudaError_t neighbours(const Get& get, cudaGraphNode_t node, std::vector<cudaGraphNode_t>& list) {
  std::size_t count = 0;
  cudaError_t error = get(node, nullptr, nullptr, &count);
  list.resize(count);
  // Edges of a fill say nothing but its end.
  std::vector<cudaGraphEdgeData> edges(count);
  if (error == cudaSuccess && count > 0) error = get(node, list.data(), edges.data(), &count);
  return error;
}

cudaError_t replace(cudaGraph_t graph, cudaGraphNode_t fill_node) {
  cudaMemsetParams fill{};
  cudaError_t error = cudaGraphMemsetNodeGetParams(fill_node, &fill);
  if (error != cudaSuccess || fill.height != 1 || fill.width * fill.elementSize > kMaxBytes)
    return error;
  std::vector<cudaGraphNode_t> before, after;
  error = neighbours(cudaGraphNodeGetDependencies, fill_node, before);
  if (error == cudaSuccess) error = neighbours(cudaGraphNodeGetDependentNodes, fill_node, after);
  cudaGraphNode_t kernel = nullptr;
  if (error == cudaSuccess) error = add_fill(graph, before, fill, kernel);
  if (error != cudaSuccess) return error;
  const std::vector<cudaGraphNode_t> from(after.size(), kernel);
  if (!after.empty())
    error = cudaGraphAddDependencies(graph, from.data(), after.data(), nullptr, after.size());
  return error == cudaSuccess ? cudaGraphDestroyNode(fill_node) : error;
}

}  // namespace

cudaError_t replace_small_fills(cudaGraph_t graph) {
  std::size_t count = 0;
  cudaError_t error = cudaGraphGetNodes(graph, nullptr, &count);
  std::vector<cudaGraphNode_t> nodes(count);
  if (error == cudaSuccess) error = cudaGraphGetNodes(graph, nodes.data(), &count);
  for (std::size_t i = 0; i < nodes.size() && error == cudaSuccess; ++i) {
    cudaGraphNodeType type{};
    // The runtime knows no type of the driver's stream memory operations.
    if (cudaGraphNodeGetType(nodes[i], &type) != cudaSuccess) {
      (void)cudaGetLastError();
    } else if (type == cudaGraphNodeTypeMemset) {
      error = replace(graph, nodes[i]);
    }
  }
  return error;
}

}  // namespace dstrain
