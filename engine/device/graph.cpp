#include "engine/device/graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "engine/device/graph_nodes.h"
#include "engine/device/graph_zeros.h"

namespace dstrain {

struct Graph::State {
  at::Tensor zeros;  ///< of GraphZeros
  at::cuda::CUDAGraph graph{/*keep_graph=*/true};
};

Graph::Graph() = default;
Graph::~Graph() = default;

void Graph::capture(const Stream& stream, const std::function<void()>& work, const Graph* sharing) {
  state_ = std::make_unique<State>();
  const StreamScope scope(stream);
  State* const other = sharing != nullptr && sharing->captured_ ? sharing->state_.get() : nullptr;
  // Each graph fills it again.
  state_->zeros =
      other != nullptr
          ? other->zeros
          : at::empty({GraphZeros::kBytes}, at::TensorOptions(at::kByte).device(stream.device()));
  // Thread-local: loader threads and autograd's own go on calling the driver meanwhile.
  state_->graph.capture_begin(other != nullptr ? other->graph.pool() : at::cuda::MempoolId_t{0, 0},
                              cudaStreamCaptureModeThreadLocal);
  const GraphZeros zeros(stream, state_->zeros);
  work();
  state_->graph.capture_end();
  zeros.remove_fills(state_->graph.raw_cuda_graph());
  state_->graph.instantiate();
  captured_ = true;
}

void Graph::replay(const Stream& stream) {
  const StreamScope scope(stream);
  state_->graph.replay();
}

std::int64_t Graph::captured_work(const Stream& stream) {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  C10_CUDA_CHECK(::cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream.handle()), &status,
                                            &id, &graph, nullptr, nullptr, nullptr));
  if (status != cudaStreamCaptureStatusActive) return 0;
  const std::vector<cudaGraphNode_t> nodes = nodes_of(graph);
  const GraphZeros* const zeros = GraphZeros::of(stream.handle());
  return std::ranges::count_if(nodes, [&](cudaGraphNode_t node) {
    if (zeros != nullptr && zeros->removes(node)) return false;
    cudaGraphNodeType type{};
    C10_CUDA_CHECK(::cudaGraphNodeGetType(node, &type));
    return type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemcpy ||
           type == cudaGraphNodeTypeMemset;
  });
}

void release_cached_memory(c10::Device device) {
  if (device.is_cuda()) c10::cuda::CUDACachingAllocator::emptyCache();
}

}  // namespace dstrain
