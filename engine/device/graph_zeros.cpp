#include "engine/device/graph_zeros.h"

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/device/graph_nodes.h"

namespace dstrain {
namespace {

/// Those of the captures under way. Autograd enqueues on its own threads.
struct Captures {
  std::mutex mutex;
  std::map<std::uint64_t, GraphZeros*> zeros;
};

Captures& captures() {
  static Captures all;
  return all;
}

/// 0 outside of a capture.
std::uint64_t capture_of(void* stream) {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  C10_CUDA_CHECK(::cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id,
                                            nullptr, nullptr, nullptr, nullptr));
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

using Nodes = std::vector<cudaGraphNode_t>;

/// `get`: cudaGraphNodeGetDependencies or cudaGraphNodeGetDependentNodes.
template <class Get>
Nodes neighbours(const Get& get, cudaGraphNode_t node) {
  std::size_t count = 0;
  C10_CUDA_CHECK(get(node, nullptr, nullptr, &count));
  Nodes list(count);
  // Edges of a fill say nothing but its end.
  std::vector<cudaGraphEdgeData> edges(count);
  if (count > 0) C10_CUDA_CHECK(get(node, list.data(), edges.data(), &count));
  return list;
}

/// What comes after `node` follows then what comes before it.
void remove(cudaGraph_t graph, cudaGraphNode_t node) {
  const Nodes before = neighbours(::cudaGraphNodeGetDependencies, node);
  for (cudaGraphNode_t next : neighbours(::cudaGraphNodeGetDependentNodes, node)) {
    const Nodes known = neighbours(::cudaGraphNodeGetDependencies, next);
    for (cudaGraphNode_t previous : before) {
      if (std::ranges::find(known, previous) == known.end())
        C10_CUDA_CHECK(::cudaGraphAddDependencies(graph, &previous, &next, nullptr, 1));
    }
  }
  C10_CUDA_CHECK(::cudaGraphDestroyNode(node));
}

}  // namespace

GraphZeros::GraphZeros(const Stream& stream, at::Tensor memory)
    : memory_(std::move(memory)), capture_(capture_of(stream.handle())) {
  C10_CUDA_CHECK(::cudaMemsetAsync(memory_.mutable_data_ptr(), 0, kBytes,
                                   static_cast<cudaStream_t>(stream.handle())));
  const std::lock_guard lock(captures().mutex);
  captures().zeros.emplace(capture_, this);
}

GraphZeros::~GraphZeros() {
  const std::lock_guard lock(captures().mutex);
  captures().zeros.erase(capture_);
}

void* GraphZeros::take(void* stream) {
  const std::uint64_t capture = capture_of(stream);
  if (capture == 0) return nullptr;
  const std::lock_guard lock(captures().mutex);
  const auto found = captures().zeros.find(capture);
  if (found == captures().zeros.end()) return nullptr;
  GraphZeros& zeros = *found->second;
  if (zeros.taken_ + kMaxPart > static_cast<std::size_t>(kBytes)) return nullptr;
  auto* const part = static_cast<std::byte*>(zeros.memory_.mutable_data_ptr()) + zeros.taken_;
  zeros.taken_ += kMaxPart;
  return part;
}

const GraphZeros* GraphZeros::of(void* stream) {
  const std::uint64_t capture = capture_of(stream);
  const std::lock_guard lock(captures().mutex);
  const auto found = captures().zeros.find(capture);
  return found == captures().zeros.end() ? nullptr : found->second;
}

bool GraphZeros::removes(void* node) const {
  auto* const handle = static_cast<cudaGraphNode_t>(node);
  cudaGraphNodeType type{};
  C10_CUDA_CHECK(::cudaGraphNodeGetType(handle, &type));
  if (type != cudaGraphNodeTypeMemset) return false;
  cudaMemsetParams fill{};
  C10_CUDA_CHECK(::cudaGraphMemsetNodeGetParams(handle, &fill));
  const auto* const begin = static_cast<const std::byte*>(memory_.const_data_ptr());
  const auto* const at = static_cast<const std::byte*>(fill.dst);
  return at >= begin && at < begin + taken_ && fill.value == 0 && fill.height == 1 &&
         fill.width * fill.elementSize <= kMaxPart;
}

void GraphZeros::remove_fills(void* graph) const {
  auto* const handle = static_cast<cudaGraph_t>(graph);
  for (cudaGraphNode_t node : nodes_of(handle)) {
    if (removes(node)) remove(handle, node);
  }
}

}  // namespace dstrain
