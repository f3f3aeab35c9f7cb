#include "engine/device/graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

namespace dstrain {

struct Graph::State {
  at::cuda::CUDAGraph graph;
};

Graph::Graph() = default;
Graph::~Graph() = default;

void Graph::capture(const Stream& stream, const std::function<void()>& work, const Graph* sharing) {
  state_ = std::make_unique<State>();
  const StreamScope scope(stream);
  // Thread-local: loader threads and autograd's own go on calling the driver meanwhile.
  state_->graph.capture_begin(sharing != nullptr && sharing->captured_
                                  ? sharing->state_->graph.pool()
                                  : at::cuda::MempoolId_t{0, 0},
                              cudaStreamCaptureModeThreadLocal);
  work();
  state_->graph.capture_end();
  captured_ = true;
}

void Graph::replay(const Stream& stream) {
  const StreamScope scope(stream);
  state_->graph.replay();
}

void release_cached_memory(c10::Device device) {
  if (device.is_cuda()) c10::cuda::CUDACachingAllocator::emptyCache();
}

}  // namespace dstrain
